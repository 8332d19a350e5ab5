#include "src/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xla_gpu::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string file, plugin = "cpu", dtype = "bf16", child;
  std::vector<std::string> inputs;
  std::vector<int64_t> contexts;
  int64_t jobs = 3, first = 0;
  bool json = false;
  std::vector<Option> Table() {
    return {{"FILE", "", &file, "a file"},
            {"--plugin", "NAME", &plugin, "a plugin"},
            {"--dtype", "TYPE", &dtype, "a type", {"f32", "bf16"}},
            {"--input", "A.npy", &inputs, "an input"},
            {"--context", "N", &contexts, "a length"},
            {"--jobs", "N", &jobs, "how many", {}, 1, 256},
            {"--json", "", &json, "print JSON"},
            {"--child", "PATH", &child, ""},
            {"--first", "N", &first, "", {}, 0}};
  }
};

TEST(Options, AreFilled) {
  Values v;
  const Status status =
      ParseOptions({"--input", "a", "x", "--json", "--input=b=c", "--context", "4", "--context=8",
                    "--jobs", "256", "--plugin=", "--child", "p", "--first", "0", "--dtype", "f32"},
                   v.Table());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(v.file, "x");
  EXPECT_EQ(v.plugin, "");
  EXPECT_EQ(v.dtype, "f32");
  EXPECT_EQ(v.child, "p");
  EXPECT_THAT(v.inputs, ElementsAre("a", "b=c"));
  EXPECT_THAT(v.contexts, ElementsAre(4, 8));
  EXPECT_EQ(v.jobs, 256);
  EXPECT_TRUE(v.json);
}

TEST(Options, WhatIsWrongIsNamed) {
  const struct {
    Args args;
    const char* message;
  } cases[] = {
      {{}, "FILE is missing"},
      {{"a", "b"}, "argument b is one too many"},
      {{"a", ""}, "argument  is one too many"},
      {{"a", "-x"}, "option -x is unknown"},
      {{"a", "--"}, "option -- is unknown"},
      {{"a", "--plgin", "x"}, "option --plgin is unknown; did you mean --plugin?"},
      {{"a", "--pl=x"}, "option --pl is unknown; did you mean --plugin?"},
      {{"a", "--chidl", "x"}, "option --chidl is unknown"},
      {{"a", "--plugin"}, "--plugin needs a value"},
      {{"a", "--plugin", "--json"}, "--plugin needs a value"},
      {{"a", "--dtype"}, "--dtype needs a value; allowed: f32, bf16"},
      {{"a", "--dtype", "bf61"}, "--dtype is 'bf61'; allowed: f32, bf16; did you mean bf16?"},
      {{"a", "--dtype="}, "--dtype is ''; allowed: f32, bf16"},
      {{"a", "--json=1"}, "--json takes no value"},
      {{"a", "--jobs", "0"}, "--jobs is '0'; it must be a whole number from 1 to 256"},
      {{"a", "--jobs", "257"}, "--jobs is '257'"},
      {{"a", "--jobs", "-1"}, "--jobs is '-1'"},
      {{"a", "--jobs", "2x"}, "--jobs is '2x'"},
      {{"a", "--jobs="}, "--jobs is ''"},
      {{"a", "--context", "99999999999999999999"}, "--context is '99999999999999999999'"},
      {{"a", "--first", "-1"}, "--first is '-1'; it must be a whole number from 0 to 16777216"},
  };
  for (const auto& c : cases) {
    Values v;
    const Status status = ParseOptions(c.args, v.Table());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.message(), testing::StartsWith(c.message));
  }
  const Status hidden = ParseOptions({"a", "--chidl"}, Values().Table());
  EXPECT_THAT(hidden.message(), testing::Not(HasSubstr("--child")));
}

TEST(Options, HelpIsOfTheSameTable) {
  Values v;
  EXPECT_EQ(UsageText(v.Table()), " FILE [OPTIONS]");
  EXPECT_EQ(HelpText(v.Table()),
            "  FILE                        a file\n"
            "  --plugin NAME               a plugin; default cpu\n"
            "  --dtype TYPE                a type; default bf16\n"
            "  --input A.npy...            an input\n"
            "  --context N...              a length\n"
            "  --jobs N                    how many; default 3\n"
            "  --json                      print JSON\n\n");
  std::vector<std::string> names;
  EXPECT_EQ(UsageText({{"NAME", "", &names, "an op"}}), " [NAME]...");
  EXPECT_EQ(HelpText({}), "");
}

TEST(Options, DidYouMeanWhatIsMuchAlike) {
  const std::vector<std::string> names = {"run", "doctor", "cache list", "sm_80", "sm_90a"};
  for (const auto& [word, meant] :
       std::vector<std::pair<std::string, std::string>>{{"dcotor", "doctor"},
                                                        {"doct", "doctor"},
                                                        {"rn", "run"},
                                                        {"rnu", "run"},
                                                        {"cache lst", "cache list"},
                                                        {"sm_90", "sm_90a"}}) {
    EXPECT_EQ(DidYouMean(word, names), "; did you mean " + meant + "?");
  }
  for (const char* word : {"", "x", "bench", "completely else"}) {
    EXPECT_EQ(DidYouMean(word, names), "") << word;
  }
}

}  // namespace
}  // namespace xla_gpu::cli
