#include "src/cli/plugin_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace xla_gpu::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RunInChild, GivesWhatTheChildReturned) {
  std::string problem;
  EXPECT_EQ(RunInChild([] { return std::string("hello"); }, 10, &problem), "hello");
  const std::string large(1 << 20, 'x');  // more than a pipe holds
  EXPECT_EQ(RunInChild([&large] { return large; }, 10, &problem), large);
  EXPECT_EQ(problem, "");
}

TEST(RunInChild, SaysHowTheChildDied) {
  std::string problem;
  RunInChild(
      []() -> std::string {
        std::raise(SIGKILL);
        return "";
      },
      10, &problem);
  EXPECT_THAT(problem, StartsWith("it ended its process by signal 9"));
  problem.clear();
  RunInChild([]() -> std::string { _exit(3); }, 10, &problem);
  EXPECT_EQ(problem, "it ended its process with exit code 3");
  problem.clear();
  RunInChild(
      []() -> std::string {
        for (;;) pause();
      },
      1, &problem);
  EXPECT_EQ(problem, "it did not finish within 1 s");
}

TEST(SurveyPlugin, WhatIsNoPluginIsAProblem) {
  EXPECT_THAT(SurveyPlugin({.path = "/nowhere/plugin.so"}).problem,
              HasSubstr("/nowhere/plugin.so"));
  EXPECT_EQ(SurveyPlugin({.path = "/x.so", .unusable = "known"}).problem, "known");
}

TEST(SurveyPlugin, ARealPlugin) {
  for (const xla::FoundPlugin& plugin : xla::FindPjrtPlugins()) {
    if (plugin.package != "xla-cpu-pjrt") continue;
    const PluginFinding finding = SurveyPlugin(plugin);
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
