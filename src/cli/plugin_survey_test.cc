#include "src/cli/plugin_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
              StartsWith("loading it failed: signal 11"));
  const FakeProgram silent("exit 3");
  EXPECT_EQ(SurveyPlugin({.path = "/x.so"}, silent.path()).problem,
            "loading it failed: exit code 3");
}

TEST(SurveyPlugin, LinesOfThePluginItselfAreSkipped) {
  const FakeProgram noisy(
      R"(echo "loading..."; echo '{"pjrt": "0.115", "typed": true}'; echo bye)");
  const PluginFinding finding = SurveyPlugin({.path = "/x.so"}, noisy.path());
  EXPECT_EQ(finding.problem, "");
  EXPECT_EQ(finding.pjrt, "0.115");
  EXPECT_TRUE(finding.takes_typed);
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
