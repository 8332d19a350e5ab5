#include "src/core/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

using ::testing::HasSubstr;

StatusOr<std::unique_ptr<Plan>> MakePlanFor(const Call& call, int) {
  const bool fails = call.attributes->GetBool("fail", false);
  return MakePlan([fails](const Call&, const ExecutionContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return fails ? Internal("it failed") : OkStatus();
  });
}

Op MakeOp(const char* name) {
  return Op{.name = name,
            .target = name,
            .doc = "For tests.",
            .results = {{"out", "f32[]"}},
            .attrs = {{"fail", AttrType::kBool, "", false}},
            .infer = [](const Call&, Platform) -> StatusOr<std::vector<TensorSpec>> {
              return std::vector<TensorSpec>{{DType::kF32, {}}};
            },
            .make_plan = {MakePlanFor, MakePlanFor}};
}

const Op sleeper = MakeOp("sleeper"), another = MakeOp("another");

Status RunToy(const Op& op, Platform platform = Platform::kHost, bool fail = false) {
  float out = 0;
  const std::vector<TensorView> results = {{&out, DType::kF32, {}}};
  Attributes attributes;
  XLA_GPU_RETURN_IF_ERROR(attributes.Add("fail", fail));
  return RunOp(op, platform, {{}, results, &attributes}, {});
}

TEST(Profile, CountsAndTimesTheCallsOfAllThreads) {
  ASSERT_TRUE(RunToy(sleeper).ok());
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_EQ(StartProfile().code(), StatusCode::kFailedPrecondition);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(RunToy(sleeper).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(RunToy(another).ok());
  EXPECT_FALSE(RunToy(another, Platform::kHost, /*fail=*/true).ok());
  const StatusOr<std::string> times = StopProfile();
  ASSERT_TRUE(times.ok());
  const std::string us = R"(([0-9]{4,6}\.[0-9]+))";
  const auto row = [&](const char* name, int calls) {
    return StrCat(R"(\{"name":")", name, R"(","key":")", name, R"(","platform":"Host","calls":)",
                  calls, R"(,"timed":)", calls, R"(,"total_us":)", us, R"(,"min_us":)", us,
                  R"(,"max_us":)", us, R"(\})");
  };
  std::smatch found;
  ASSERT_TRUE(std::regex_match(
      *times, found,
      std::regex(StrCat(R"(\[)", row("sleeper", 20), ",", row("another", 1), R"(\])"))))
      << *times;
  const double total = std::stod(found[1]), least = std::stod(found[2]), most = std::stod(found[3]);
  EXPECT_GE(least, 2000);
  EXPECT_GE(total, 20 * least);
  EXPECT_LE(total, 20 * most);

  EXPECT_EQ(StopProfile().status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(RunToy(sleeper).ok());  // not seen
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_EQ(*StopProfile(), "[]");
}

// Marks that are numbers; stream 1 is being captured.
int made = 0, released = 0;
const StreamMarks kMarks = {
    [](void* stream) -> void* { return stream == nullptr ? new int(made++) : nullptr; },
    [](void* begin, void* end) -> StatusOr<double> {
      const int passed = *static_cast<int*>(end) - *static_cast<int*>(begin);
      if (passed != 1) return Internal("not one after the other");
      return 10.0 * *static_cast<int*>(end);
    },
    [](void* mark) {
      if (mark != nullptr) ++released;
      delete static_cast<int*>(mark);
    }};

TEST(Profile, WhatOnlyEnqueuesIsTimedByMarks) {
  SetStreamMarks(Platform::kCuda, kMarks);
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_TRUE(RunToy(sleeper, Platform::kCuda).ok());
  EXPECT_TRUE(RunToy(sleeper, Platform::kCuda).ok());
  const Attributes attributes;
  float out = 0;
  const std::vector<TensorView> results = {{&out, DType::kF32, {}}};
  int captured = 0;
  EXPECT_TRUE(
      RunOp(sleeper, Platform::kCuda, {{}, results, &attributes}, {.stream = &captured}).ok());
  EXPECT_FALSE(RunToy(sleeper, Platform::kCuda, /*fail=*/true).ok());
  EXPECT_EQ(*StopProfile(),
            R"([{"name":"sleeper","key":"sleeper","platform":"CUDA","calls":3,"timed":2,)"
            R"("total_us":40.0,"min_us":10.0,"max_us":30.0}])");
  EXPECT_EQ(made, 5);
  EXPECT_EQ(released, made);
}

TEST(Profile, AnErrorOfWhatRanEndsIt) {
  StreamMarks marks = kMarks;
  marks.microseconds = [](void*, void*) -> StatusOr<double> { return Internal("a fault"); };
  SetStreamMarks(Platform::kCuda, marks);
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_TRUE(RunToy(sleeper, Platform::kCuda).ok());
  EXPECT_THAT(StopProfile().status().message(), HasSubstr("a fault"));
  EXPECT_EQ(released, made);
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_EQ(*StopProfile(), "[]");
}

TEST(Profile, AForkedChildHasItsOwn) {
  ASSERT_TRUE(StartProfile().ok());
  EXPECT_EQ(RunForked([] {
              return RunToy(another).ok() && !StopProfile().ok() && StartProfile().ok() &&
                     RunToy(another).ok() &&
                     StopProfile()->find(R"("calls":1,)") != std::string::npos;
            }),
            0);
  EXPECT_EQ(*StopProfile(), "[]");
}

}  // namespace
}  // namespace xla_gpu
