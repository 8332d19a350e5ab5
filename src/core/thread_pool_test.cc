#include "src/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace xla_gpu {
namespace {

// Each index is run once, whatever the numbers of threads and tasks.
TEST(ThreadPool, RunsEachTaskOnce) {
  for (int threads : {0, 1, 2, 3, 8}) {
    const auto pool = MakeThreadPool(threads);
    EXPECT_EQ(pool->num_threads(), std::max(1, threads));
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(n);
      pool->ParallelFor(n, [&](int64_t i) { runs[i].fetch_add(1); });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, WhatTasksWriteIsSeenAfterwards) {
  const auto pool = MakeThreadPool(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> values(64, 0);  // plain ints: TSan proves the ordering
    pool->ParallelFor(64, [&](int64_t i) { values[i] = static_cast<int>(i) + round; });
    for (int i = 0; i < 64; ++i) ASSERT_EQ(values[i], i + round);
  }
}

// A task that starts a loop on the same pool must not wait for a thread that waits for it.
TEST(ThreadPool, LoopsMayNest) {
  const auto pool = MakeThreadPool(2);
  std::atomic<int> runs{0};
  pool->ParallelFor(8, [&](int64_t) {
    pool->ParallelFor(8, [&](int64_t) { pool->ParallelFor(2, [&](int64_t) { ++runs; }); });
  });
  EXPECT_EQ(runs.load(), 8 * 8 * 2);
}

TEST(ThreadPool, ManyCallersShareOne) {
  const auto pool = MakeThreadPool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool->ParallelFor(16, [&](int64_t i) { sum += i; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 6 * 50 * (15 * 16 / 2));
}

// A runtime's pool that hands helpers out when it likes: they are kept, and run (or dropped) later.
class LatePool final : public ThreadPool {
 public:
  int num_threads() const override { return 4; }
  std::vector<std::function<void()>> helpers;

 protected:
  void Schedule(std::function<void()> helper) override { helpers.push_back(std::move(helper)); }
};

TEST(ThreadPool, HelpersThatComeLateDoNothing) {
  LatePool pool;
  int runs = 0;
  {
    const auto task = [&runs](int64_t) { ++runs; };
    pool.ParallelFor(10, task);
  }
  EXPECT_EQ(runs, 10);
  EXPECT_EQ(pool.helpers.size(), 3);
  for (const auto& helper : pool.helpers) helper();
  EXPECT_EQ(runs, 10);
}

TEST(ThreadPool, HelpersThatNeverComeAreNotWaitedFor) {
  LatePool pool;
  int runs = 0;
  pool.ParallelFor(5, [&runs](int64_t) { ++runs; });
  pool.helpers.clear();
  EXPECT_EQ(runs, 5);
}

// Helpers run while the caller's loop is being torn down: they share the loop's state, not its
// task.
TEST(ThreadPool, HelpersRaceWithTheEndOfTheLoop) {
  class RacingPool final : public ThreadPool {
   public:
    ~RacingPool() override {
      for (std::thread& thread : threads_) thread.join();
    }
    int num_threads() const override { return 3; }

   protected:
    void Schedule(std::function<void()> helper) override {
      threads_.emplace_back(std::move(helper));
    }

   private:
    std::vector<std::thread> threads_;
  };
  for (int round = 0; round < 100; ++round) {
    RacingPool pool;
    std::atomic<int> runs{0};
    pool.ParallelFor(3, [&runs](int64_t) { ++runs; });
    ASSERT_EQ(runs.load(), 3);
  }
}

TEST(DefaultThreadPool, IsOnePool) {
  EXPECT_EQ(&DefaultThreadPool(), &DefaultThreadPool());
  EXPECT_GE(DefaultThreadPool().num_threads(), 1);
}

}  // namespace
}  // namespace xla_gpu
