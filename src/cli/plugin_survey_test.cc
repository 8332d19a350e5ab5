#include "src/cli/plugin_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "src/cuda/test_util.h"

namespace xla_gpu::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Program() {
  const char* program = std::getenv("XLA_GPU_PROGRAM");  // ctest sets it
  return program == nullptr ? "" : program;
}

// A program that stands in for ours and answers as `script` does.
class FakeProgram {
 public:
  explicit FakeProgram(const std::string& script) { folder_.WriteScript("program", script); }
  std::string path() const { return folder_.path("program"); }

 private:
  cuda::TempFolder folder_;
};

TEST(SurveyPlugin, WhatIsNoPluginIsAProblem) {
  if (Program().empty()) GTEST_SKIP() << "XLA_GPU_PROGRAM is not set; run by ctest";
  EXPECT_THAT(SurveyPlugin({.path = "/nowhere/plugin.so"}, Program()).problem,
              HasSubstr("/nowhere/plugin.so"));
}

TEST(SurveyPlugin, AKnownProblemNeedsNoLoading) {
  EXPECT_EQ(SurveyPlugin({.path = "/x.so", .unusable = "known"}, "/nowhere").problem, "known");
}

TEST(SurveyPlugin, ACrashIsAProblem) {
  const FakeProgram crash("kill -SEGV $$");
  EXPECT_THAT(SurveyPlugin({.path = "/x.so"}, crash.path()).problem,
              StartsWith("loading it failed: it was killed by signal 11"));
  const FakeProgram silent("exit 3");
  EXPECT_EQ(SurveyPlugin({.path = "/x.so"}, silent.path()).problem,
            "loading it failed: it ended with exit code 3");
}

TEST(SurveyPlugin, LinesOfThePluginItselfAreSkipped) {
  const FakeProgram noisy(
      R"(echo "loading..."; echo '{"pjrt": "0.115", "gpu": false, "ffi": "0.1", "typed": true, )"
      R"("legacy": false, "extensions": ["FFI"], "problem": ""}'; echo bye; echo '{"pjrt": 7}')");
  const PluginFinding finding = SurveyPlugin({.path = "/x.so"}, noisy.path());
  EXPECT_EQ(finding.problem, "");
  EXPECT_EQ(finding.pjrt, "0.115");
  EXPECT_TRUE(finding.takes_typed);
}

TEST(SurveyPlugin, StrangeJsonIsNoAnswer) {
  for (const char* line :
       {"null", "[]", "3", "{}", R"({"pjrt": 1})", R"({"problem": []})", R"({"pjrt": "0.1"})",
        R"({"pjrt": "0.1", "gpu": 1, "ffi": "0.1", "typed": true, "legacy": false, )"
        R"("extensions": []})",
        R"({"pjrt": "0.1", "gpu": true, "ffi": "0.1", "typed": true, "legacy": false, )"
        R"("extensions": [[1]]})"}) {
    const FakeProgram strange("echo '" + std::string(line) + "'");
    EXPECT_EQ(SurveyPlugin({.path = "/x.so"}, strange.path()).pjrt, "") << line;
    EXPECT_THAT(SurveyPlugin({.path = "/x.so"}, strange.path()).problem,
                StartsWith("loading it failed"))
        << line;
  }
}

TEST(SurveyPlugin, OutputWithoutEndIsAProblem) {
  const std::string json = "exec yes '{\"a\": \"" + std::string(10'000, 'b') + "\"}'";
  for (const std::string& script :
       {std::string("exec yes"), std::string("exec cat /dev/zero"), json}) {
    const FakeProgram endless(script);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(SurveyPlugin({.path = "/x.so"}, endless.path()).problem,
                HasSubstr("more output than"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1))
        << script.substr(0, 20);
  }
}

TEST(SurveyPlugin, ARealPlugin) {
  for (const xla::FoundPlugin& plugin : xla::FindPjrtPlugins()) {
    if (plugin.package != "xla-cpu-pjrt" || Program().empty()) continue;
    const PluginFinding finding = SurveyPlugin(plugin, Program());
    EXPECT_EQ(finding.problem, "");
    EXPECT_EQ(finding.pjrt, "0.81");
    EXPECT_FALSE(finding.is_gpu);
    EXPECT_TRUE(finding.takes_typed);
    EXPECT_FALSE(finding.takes_legacy);
    return;
  }
  GTEST_SKIP() << "xla-cpu-pjrt is not installed where plugins are looked for";
}

}  // namespace
}  // namespace xla_gpu::cli
