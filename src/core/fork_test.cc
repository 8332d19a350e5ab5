#include "src/core/fork.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

constexpr unsigned kSeconds = 20;  // of a child that does not hang

struct Counter {
  std::mutex mutex;
  int value = 0;
};
constinit PerProcess<Counter> counter;
constinit PerProcess<Counter> contended;

TEST(PerProcess, IsOneInAProcessAndAnotherInAChild) {
  Counter* const here = &counter.Get();
  EXPECT_EQ(here, &counter.Get());
  here->value = 1;
  const std::lock_guard<std::mutex> held(here->mutex);  // for ever, as the child sees it
  const int64_t generation = ForkGeneration();
  const auto is_new = [](const Counter* parents) {
    Counter& own = counter.Get();
    const std::lock_guard<std::mutex> lock(own.mutex);
    return &own != parents && own.value++ == 0 && &own == &counter.Get();
  };
  EXPECT_EQ(RunForked(
                [&] {
                  if (ForkGeneration() != generation + 1 || !is_new(here)) return false;
                  const Counter* childs = &counter.Get();
                  return RunForked([&] { return is_new(childs); }, kSeconds) == 0;
                },
                kSeconds),
            0);
  EXPECT_EQ(ForkGeneration(), generation);
  EXPECT_EQ(here, &counter.Get());
  EXPECT_EQ(here->value, 1);
}

TEST(PerProcess, ThreadsThatComeAtOnceGetOne) {
  std::vector<Counter*> seen(8);
  std::vector<std::thread> threads;
  for (Counter*& slot : seen) threads.emplace_back([&slot] { slot = &contended.Get(); });
  for (std::thread& thread : threads) thread.join();
  for (const Counter* one : seen) EXPECT_EQ(one, &contended.Get());
}

// Two numbers that are equal whenever the mutex is free.
ForkSafeMutex mutex;
ForkSafeMutex other;
volatile int64_t first = 0;
volatile int64_t second = 0;

TEST(ForkSafeMutex, IsFreeInEveryChildAndWhatItGuardsIsWhole) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stop] {
      while (!stop) {
        {
          const std::lock_guard lock(mutex);
          first = first + 1;
          second = second + 1;
        }
        const std::lock_guard lock(other);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(RunForked(
                  [] {
                    const std::lock_guard lock(mutex);
                    const std::lock_guard second_lock(other);
                    return first == second;
                  },
                  kSeconds),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace xla_gpu
