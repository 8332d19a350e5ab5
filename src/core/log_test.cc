#include "src/core/log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

// What the body says on stderr, in a process of its own: the level is read once.
template <typename Body>
std::string Said(const char* level, Body body) {
  const TempFolder folder;
  const ScopedEnv log("XLA_GPU_LOG", level);
  EXPECT_EQ(RunForked([&] {
              if (std::freopen(folder.path("err").c_str(), "w", stderr) == nullptr) return false;
              body();
              return true;
            }),
            0);
  return ReadWhole(folder.path("err"));
}

void SayAll() {
  LogInfo("told");
  LogWarning("look");
  LogWarningOnce("once");
  LogWarningOnce("once");
}

TEST(Log, Levels) {
  const std::string warnings = "xla_gpu: warning: look\nxla_gpu: warning: once\n";
  EXPECT_EQ(Said(nullptr, SayAll), warnings);
  EXPECT_EQ(Said("", SayAll), warnings);
  EXPECT_EQ(Said("warning", SayAll), warnings);
  EXPECT_EQ(Said("off", SayAll), "");
  EXPECT_EQ(Said("info", SayAll), "xla_gpu: told\n" + warnings);
  EXPECT_EQ(Said("3", SayAll),
            "xla_gpu: warning: XLA_GPU_LOG is '3'; it must be off, warning or info\n" + warnings);
}

TEST(Log, SwitchesAreOneOrZero) {
  const auto said = [](const char* value, bool on) {
    return Said(nullptr, [&] {
      const ScopedEnv env("XLA_GPU_SYNC", value);
      if (IsSwitchedOn("XLA_GPU_SYNC") != on) LogWarning("wrong");
    });
  };
  EXPECT_EQ(said("1", true), "");
  for (const char* off : {static_cast<const char*>(nullptr), "", "0"}) {
    EXPECT_EQ(said(off, false), "");
  }
  EXPECT_EQ(said("true", false),
            "xla_gpu: warning: XLA_GPU_SYNC is 'true'; it must be 1 or 0, and is taken for 0\n");
}

TEST(Log, LinesOfThreadsStayWhole) {
  const std::string line(200, 'x');
  const std::string said = Said("info", [&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 50; ++k) LogInfo(line);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::string expected;
  for (int i = 0; i < 400; ++i) expected += "xla_gpu: " + line + "\n";
  EXPECT_EQ(said, expected);
}

}  // namespace
}  // namespace xla_gpu
