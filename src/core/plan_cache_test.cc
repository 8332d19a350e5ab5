#include "src/core/plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "src/core/op_registry.h"

namespace xla_gpu {
namespace {

using ::testing::HasSubstr;

std::atomic<int> plans_made{0};

class CountingPlan final : public Plan {
 public:
  explicit CountingPlan(int device) : device(device) {}
  Status Run(const Call& call, const ExecutionContext& context) const override {
    *call.results[0].data_as<float>() = 42.0f;
    return OkStatus();
  }
  const int device;
};

StatusOr<std::unique_ptr<Plan>> MakePlan(const Call& call, int device) {
  ++plans_made;
  if (call.attributes->GetBool("fail", false)) return ResourceExhausted("no room");
  return std::unique_ptr<Plan>(std::make_unique<CountingPlan>(device));
}

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform) {
  const TensorView& x = call.args[0];
  if (x.rank() > 4) return InvalidArgument("toy: x has too many dimensions");
  return std::vector<TensorSpec>{{x.dtype, {x.shape.begin(), x.shape.end()}}};
}

Op MakeToy() {
  return Op{.name = "toy",
            .target = "xla_gpu_toy",
            .doc = "For tests.",
            .args = {{"x", {}, "any"}},
            .results = {{"out", "as x"}},
            .attrs = {{"fail", AttrType::kBool, "", false},
                      {"f", AttrType::kFloat, "", 0.0},
                      {"n", AttrType::kInt, "", int64_t{0}},
                      {"s", AttrType::kString, "", std::string_view()},
                      {"t", AttrType::kString, "", std::string_view()},
                      {"a", AttrType::kIntArray, "", std::span<const int64_t>()}},
            .infer = Infer,
            .make_plan = {MakePlan, nullptr}};
}

class PlanCacheTest : public ::testing::Test {
 protected:
  PlanCacheTest() { plans_made = 0; }

  // Looks a call up and returns its plan, or the error.
  StatusOr<std::shared_ptr<const Plan>> Get(const std::vector<int64_t>& dims,
                                            std::vector<Attribute> attributes = {},
                                            DType dtype = DType::kF32,
                                            Platform platform = Platform::kHost) {
    Attributes all;
    for (const Attribute& a : attributes) {
      if (Status status = all.Add(a.name, a.value); !status.ok()) return status;
    }
    const TensorView tensor{nullptr, dtype, Shape(dims)};
    return cache_.GetOrCreate(op_, platform, Call{{&tensor, 1}, {&tensor, 1}, &all});
  }

  const Op op_ = MakeToy();
  PlanCache cache_;
};

TEST_F(PlanCacheTest, AProblemIsPlannedOnce) {
  const auto first = Get({2, 3});
  const auto again = Get({2, 3});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(plans_made, 1);
  EXPECT_EQ(cache_.size(), 1);
}

TEST_F(PlanCacheTest, WhateverDiffersInTypeOrAttributeIsAnotherProblem) {
  const std::vector<int64_t> one = {1};
  const std::vector<int64_t> two = {1, 2};
  ASSERT_TRUE(Get({2, 3}).ok());
  ASSERT_TRUE(Get({3, 2}).ok());
  ASSERT_TRUE(Get({2, 3, 1}).ok());
  ASSERT_TRUE(Get({6}).ok());
  ASSERT_TRUE(Get({}).ok());
  ASSERT_TRUE(Get({2, 3}, {}, DType::kI32).ok());
  ASSERT_TRUE(Get({2, 3}, {{"n", int64_t{0}}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"n", int64_t{1}}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"f", int64_t{1}}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"f", 1.0}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"f", -0.0}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"f", 0.0}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"s", std::string_view("ab")}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"s", std::string_view("a")}, {"t", std::string_view("b")}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"s", std::string_view("")}, {"t", std::string_view("ab")}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"a", std::span<const int64_t>(one)}}).ok());
  ASSERT_TRUE(Get({2, 3}, {{"a", std::span<const int64_t>(two)}}).ok());
  EXPECT_EQ(cache_.size(), 17);
  EXPECT_EQ(plans_made, 17);
}

TEST_F(PlanCacheTest, TheDeviceIsPartOfTheProblem) {
  static std::atomic<int> device{0};
  SetCurrentDeviceFn(
      Platform::kHost, +[] { return device.load(); });
  const auto on0 = Get({2});
  device = 1;
  const auto on1 = Get({2});
  SetCurrentDeviceFn(Platform::kHost, nullptr);
  ASSERT_TRUE(on0.ok() && on1.ok());
  EXPECT_EQ(static_cast<const CountingPlan&>(**on0).device, 0);
  EXPECT_EQ(static_cast<const CountingPlan&>(**on1).device, 1);
}

TEST_F(PlanCacheTest, ErrorsAreGivenEachTimeAndNotKept) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Get({2}, {{"fail", true}}).status().ToString(), "RESOURCE_EXHAUSTED: no room");
    EXPECT_THAT(Get({1, 1, 1, 1, 1}).status().message(), HasSubstr("too many dimensions"));
    EXPECT_EQ(Get({2}, {}, DType::kF32, Platform::kCuda).status().ToString(),
              "UNIMPLEMENTED: toy: there is no kernel for platform CUDA");
  }
  EXPECT_EQ(cache_.size(), 0);
  EXPECT_EQ(plans_made, 2);
}

TEST_F(PlanCacheTest, AFullCacheStartsAnewAndPlansInUseLive) {
  const auto kept = Get({0});
  for (int64_t i = 1; i <= static_cast<int64_t>(PlanCache::kMaxPlans); ++i) {
    ASSERT_TRUE(Get({i}).ok());
  }
  EXPECT_EQ(cache_.size(), 1);
  float out = 0;
  const TensorView result{&out, DType::kF32, {}};
  const Attributes none;
  EXPECT_TRUE((*kept)->Run(Call{{}, {&result, 1}, &none}, {}).ok());
  EXPECT_EQ(out, 42.0f);
  cache_.Clear();
  EXPECT_EQ(cache_.size(), 0);
}

// Many threads meet the same new problems at once: each gets one and the same plan a problem.
TEST_F(PlanCacheTest, ThreadsShareOnePlanAProblem) {
  constexpr int kThreads = 8;
  constexpr int64_t kProblems = 40;
  std::vector<std::vector<std::shared_ptr<const Plan>>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t round = 0; round < 3; ++round) {
        for (int64_t p = 0; p < kProblems; ++p) {
          auto plan = Get({(p + 5 * t) % kProblems});
          if (plan.ok() && round == 2) seen[t].push_back(*plan);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    ASSERT_EQ(seen[t].size(), kProblems);
    for (int64_t p = 0; p < kProblems; ++p) {
      EXPECT_EQ(seen[t][p], seen[0][(p + 5 * t) % kProblems]);
    }
  }
  EXPECT_EQ(cache_.size(), kProblems);
}

TEST_F(PlanCacheTest, ClearWhileOthersLookUp) {
  std::atomic<bool> stop{false};
  std::thread clearer([&] {
    while (!stop) cache_.Clear();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 2000; ++i) EXPECT_TRUE(Get({i % 7}).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  clearer.join();
}

TEST(RunOp, RunsThePlan) {
  const Op op = MakeToy();
  float in = 0;
  float out = 0;
  const TensorView x{&in, DType::kF32, {}};
  const TensorView y{&out, DType::kF32, {}};
  const Attributes none;
  EXPECT_TRUE(RunOp(op, Platform::kHost, Call{{&x, 1}, {&y, 1}, &none}, {}).ok());
  EXPECT_EQ(out, 42.0f);
  PlanCache::Global().Clear();  // `op` dies here, and its address is part of the key
}

}  // namespace
}  // namespace xla_gpu
