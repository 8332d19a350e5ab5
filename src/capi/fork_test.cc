// A child forked while other threads run ops is a process like any other: it never hangs, and runs
// ops of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "src/capi/test_util.h"

namespace xla_gpu {
namespace {

using ForkTest = ForkingTest;

TEST_F(ForkTest, AChildForkedWhileThreadsRunOpsRunsThemToo) {
  if (kAddressSanitizer) GTEST_SKIP() << "ASan's own allocator may be locked in the child";
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&stop, t] {
      AttentionCall call;
      // Known problems and new ones by turns: the cache of plans is read and written.
      for (int i = 0; !stop; ++i) EXPECT_EQ(call.Run(i % 2 == 0 ? 1.0 : 2.0 + i * 4 + t), "");
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  int forks = 0, failed = 0;
  for (; failed == 0 && std::chrono::steady_clock::now() < end; ++forks) {
    failed = InChild([] {
      AttentionCall call;
      for (int i = 0; i < 3; ++i) {
        if (call.Run(1.0) != "" || !call.IsRight()) return 1;
      }
      return call.Run(0.5) == "" ? 0 : 1;
    });
  }
  EXPECT_EQ(failed, 0) << "at fork " << forks;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(forks, 10);
  RecordProperty("forks", forks);
}

int64_t ResidentKilobytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  const int read = fscanf(file, "%ld %ld", &size, &resident);
  fclose(file);
  return read == 2 ? resident * (sysconf(_SC_PAGESIZE) / 1024) : 0;
}

TEST_F(ForkTest, AChildsCallsLeaveNothingBehind) {
  if (kAddressSanitizer) GTEST_SKIP() << "ASan keeps what is freed for a while";
  AttentionCall call;
  ASSERT_EQ(call.Run(1.0), "");  // the parent has its pool
  EXPECT_EQ(InChild([&call] {
              // What is left behind grows every time; a thread that begins late grows once.
              int64_t least = 1 << 30;
              for (int turn = 0; turn < 3; ++turn) {
                const int64_t before = ResidentKilobytes();
                for (int i = 0; i < 50'000; ++i) call.Run(1.0);
                least = std::min(least, ResidentKilobytes() - before);
              }
              return least < 2000 ? 0 : 1;
            }),
            0);
}

TEST_F(ForkTest, GrandchildrenRunOpsToo) {
  AttentionCall call;
  ASSERT_EQ(call.Run(1.0), "");
  EXPECT_EQ(InChild([&call] {
              if (call.Run(1.0) != "") return 1;
              return InChild([&call] { return call.Run(1.0) == "" ? 0 : 1; });
            }),
            0);
}

}  // namespace
}  // namespace xla_gpu
