#include "src/core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <cfenv>
#include <chrono>
#include <fstream>
#include <new>
#include <stdexcept>
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
class LatePool : public ThreadPool {
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

TEST(ThreadPool, ASubmittedTaskRunsOnce) {
  int runs = 0;
  LatePool pool;
  pool.Submit([&runs] { ++runs; });
  pool.Submit([&runs] { ++runs; });
  EXPECT_EQ(runs, 0);
  pool.helpers[0]();
  EXPECT_EQ(runs, 1);
  pool.helpers.clear();  // a pool that drops a helper: here and now
  EXPECT_EQ(runs, 2);
  MakeThreadPool(1)->Submit([&runs] { ++runs; });
  EXPECT_EQ(runs, 3);
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

// XLA's threads flush subnormals, others' do not; some round otherwise.
TEST(ThreadPool, HelpersComputeAsTheCallerDoes) {
  const auto pool = MakeThreadPool(2);
  std::fenv_t before;
  std::fegetenv(&before);
#if defined(__SSE2__)
  constexpr unsigned kFlushed = 0x8040;  // subnormal results and operands
  _mm_setcsr(_mm_getcsr() | kFlushed);
#endif
  std::fesetround(FE_UPWARD);
  std::atomic<int> begun{0}, wrong{0};
  pool->ParallelFor(2, [&](int64_t) {  // each waits for the other: two threads
    ++begun;
    while (begun < 2) std::this_thread::yield();
    if (std::fegetround() != FE_UPWARD) ++wrong;
#if defined(__SSE2__)
    if ((_mm_getcsr() & kFlushed) != kFlushed) ++wrong;
#endif
  });
  std::fesetenv(&before);
  EXPECT_EQ(wrong, 0);
  // A helper leaves its thread as it was.
  std::atomic<int> rounding{-1};
  pool->Submit([&] { rounding = std::fegetround(); });
  while (rounding < 0) std::this_thread::yield();
  EXPECT_EQ(rounding, FE_TONEAREST);
}

// Whoever throws, in whatever thread: the caller gets it when no task runs any more.
TEST(ThreadPool, WhatATaskThrowsIsTheCallers) {
  const auto pool = MakeThreadPool(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> running{0};
    std::atomic<int> runs{0};
    const auto task = [&](int64_t i) {
      ++running;
      ++runs;
      if (i % 16 == round % 16) {
        --running;
        throw std::runtime_error("task");
      }
      --running;
    };
    try {
      pool->ParallelFor(64, task);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "task");
    }
    EXPECT_EQ(running, 0);
    EXPECT_LE(runs, 64);
    std::atomic<int> after{0};
    pool->ParallelFor(8, [&](int64_t) { ++after; });
    EXPECT_EQ(after, 8);
  }
  EXPECT_THROW(MakeThreadPool(1)->ParallelFor(3, [](int64_t) { throw std::bad_alloc(); }),
               std::bad_alloc);
}

TEST(ThreadPool, WhatAHelperThrowsIsTheCallersToo) {
  const auto pool = MakeThreadPool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> throwing{false};
  const auto task = [&](int64_t) {
    if (std::this_thread::get_id() != caller) {
      throwing = true;
      throw std::bad_alloc();
    }
    for (int i = 0; i < 5000 && !throwing; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_THROW(pool->ParallelFor(2, task), std::bad_alloc);
}

// The caller's own task throws while a helper still works on what lies on the caller's stack.
TEST(ThreadPool, TheCallerWaitsForItsHelpersBeforeItThrows) {
  const auto pool = MakeThreadPool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> helping{false};
    std::atomic<bool> helped{false};
    const auto task = [&](int64_t) {
      if (std::this_thread::get_id() == caller) {
        for (int i = 0; i < 1000 && !helping; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        throw std::bad_alloc();
      }
      helping = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      helped = true;
    };
    EXPECT_THROW(pool->ParallelFor(2, task), std::bad_alloc);
    EXPECT_EQ(helped, helping);
  }
}

// Not even the helpers can be scheduled: the caller does their work.
TEST(ThreadPool, APoolThatThrowsLeavesTheWorkToTheCaller) {
  class FullPool final : public LatePool {
   protected:
    void Schedule(std::function<void()> helper) override {
      if (helpers.size() == 2) throw std::bad_alloc();
      LatePool::Schedule(std::move(helper));
    }
  };
  FullPool pool;
  int runs = 0;
  pool.ParallelFor(10, [&runs](int64_t) { ++runs; });
  EXPECT_EQ(runs, 10);
  EXPECT_EQ(pool.helpers.size(), 2);
}

#ifndef XLA_GPU_SANITIZED  // sanitizers reserve far more address space than any limit
rlim_t MappedBytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// Threads run out after the first few: the pool makes do with those.
TEST(ThreadPool, TakesTheThreadsThatThereAre) {
  const pid_t pid = fork();
  if (pid == 0) {
    rlimit limit{};
    // Each thread maps a stack of 8 MB or so.
    limit.rlim_cur = limit.rlim_max = MappedBytes() + (rlim_t{100} << 20);
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const auto pool = MakeThreadPool(1000);
    std::atomic<int> runs{0};
    pool->ParallelFor(1000, [&runs](int64_t) { ++runs; });
    _exit(pool->num_threads() < 1000 && runs == 1000 ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

TEST(DefaultThreadPool, IsOnePool) {
  EXPECT_EQ(&DefaultThreadPool(), &DefaultThreadPool());
  EXPECT_GE(DefaultThreadPool().num_threads(), 1);
}

}  // namespace
}  // namespace xla_gpu
