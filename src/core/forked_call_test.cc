#include "src/core/forked_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace xla_gpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

ForkedAnswer<int> Call(const std::function<int()>& call, milliseconds limit = seconds(60)) {
  auto result = CallForked<int>(call, limit);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD) << "a child is left";
  return result.ok() ? *result : ForkedAnswer<int>{};
}

TEST(ForkedCall, GivesWhatTheCallReturns) {
  int here = 1;
  const auto result = Call([&here] { return here = 42; });
  ASSERT_TRUE(result.answer.has_value());
  EXPECT_EQ(*result.answer, 42);
  EXPECT_EQ(here, 1) << "the call ran in this process";
  EXPECT_EQ(result.end.exit_code, 0);
}

TEST(ForkedCall, WhatDoesNotReturnIsTold) {
  const struct {
    const char* how;
    std::function<int()> call;
  } cases[] = {
      {"signal 9", [] { return raise(SIGKILL); }},
      {"signal 11", [] { return raise(SIGSEGV); }},
      {"signal 6", []() -> int { std::abort(); }},
      {"signal 6", []() -> int { throw std::runtime_error("not into the host's code"); }},
      {"exit code 7", []() -> int { _exit(7); }},
  };
  for (const auto& c : cases) {
    const auto result = Call(c.call);
    EXPECT_FALSE(result.answer.has_value());
    EXPECT_THAT(result.end.HowItEnded(), HasSubstr(c.how));
  }
}

TEST(ForkedCall, EndsInTime) {
  for (const auto& call : std::initializer_list<std::function<int()>>{
           [] { return pause(); }, [] { return raise(SIGSTOP), pause(); },
           [] { return fork(), pause(); }}) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = Call(call, milliseconds(200));
    EXPECT_FALSE(result.answer.has_value());
    EXPECT_TRUE(result.end.timed_out);
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  }
}

TEST(ForkedCall, TheHostsFilesAndHandlersAreNotThere) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto before = std::signal(SIGUSR1, [](int) {});
  const auto written = Call([&ends] { return static_cast<int>(write(ends[1], "x", 1)); });
  EXPECT_EQ(written.answer, -1);
  const auto handler = Call([] { return std::signal(SIGUSR1, SIG_IGN) == SIG_DFL ? 1 : 0; });
  EXPECT_EQ(handler.answer, 1);
  std::signal(SIGUSR1, before);
  close(ends[0]);
  close(ends[1]);
}

// A host that ignores SIGCHLD cannot tell how a child ended, but hears the answer.
TEST(ForkedCall, AHostThatCollectsNoChildren) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const auto answered = CallForked<int>([] { return 5; }, seconds(60));
  const auto crashed = CallForked<int>([]() -> int { std::abort(); }, seconds(60));
  std::signal(SIGCHLD, before);
  ASSERT_TRUE(answered.ok() && crashed.ok());
  EXPECT_EQ(answered->answer, 5);
  EXPECT_FALSE(crashed->answer.has_value());
  EXPECT_THAT(crashed->end.HowItEnded(), HasSubstr("SIGCHLD"));
}

}  // namespace
}  // namespace xla_gpu
