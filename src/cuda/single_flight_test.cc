#include "src/cuda/single_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace xla_gpu::cuda {
namespace {

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

TEST(SingleFlight, OneThreadMakesAndAllGet) {
  SingleFlight<int> flights;
  std::atomic<int> made = 0, right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      auto value = flights.Get(i % 2 == 0 ? "even" : "odd", [&, i]() -> StatusOr<int> {
        ++made;
        Pause();
        return i % 2;
      });
      if (value.ok() && *value == i % 2) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(right, 16);
}

TEST(SingleFlight, AnErrorGoesToThoseWhoWaitAndIsForgotten) {
  SingleFlight<int> flights;
  std::atomic<int> made = 0, errors = 0;
  auto fail = [&]() -> StatusOr<int> {
    ++made;
    Pause();
    return Internal("no");
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { errors += flights.Get("key", fail).ok() ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, 8);
  EXPECT_LT(made, 8);
  EXPECT_EQ(*flights.Get("key", []() -> StatusOr<int> { return 7; }), 7);
}

TEST(SingleFlight, AnExceptionLeavesNothingBehind) {
  SingleFlight<int> flights;
  auto thrower = []() -> StatusOr<int> { throw std::runtime_error("no"); };
  EXPECT_THROW((void)flights.Get("key", thrower), std::runtime_error);
  EXPECT_EQ(*flights.Get("key", []() -> StatusOr<int> { return 7; }), 7);
}

}  // namespace
}  // namespace xla_gpu::cuda
