// grouped_matmul on the Host against f64, for every instruction set.
#include <gtest/gtest.h>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/ops/grouped_matmul/random_case.h"
#include "src/ops/paged_cache/cpu/for_each_target.h"

namespace xla_gpu::grouped_matmul {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16, kI32 = DType::kI32;

constexpr Kind kKinds[] = {{kF32, kF32, kF32, 70, 300, 9},
                           {kF32, kF32, kF32, 1, 1, 60},
                           {kBF16, kBF16, kF32, 300, 64, 30},
                           {kBF16, kBF16, kBF16, 33, 31, 4},
                           {kF16, kF16, kF16, 128, 90, 12},
                           {kF32, kF32, kBF16, 16, 260, 3},
                           {kBF16, DType::kF8E4M3FN, kF32, 96, 70, 8, 3},
                           {kBF16, DType::kF8E4M3FN, kBF16, 200, 272, 5, 1},
                           {kF32, DType::kF8E5M2, kF32, 20, 40, 8},
                           {kBF16, DType::kF8E5M2, kBF16, 87, 300, 14, 3},
                           {kBF16, DType::kI8, kBF16, 384, 33, 8, 2},
                           {kF32, DType::kI8, kF32, 48, 40, 70, 1}};

#if defined(XLA_GPU_SANITIZED)  // ten times slower, and not there for the numbers
constexpr uint64_t kSeeds = 2;
#else
constexpr uint64_t kSeeds = 12;
#endif

void ExpectRightProducts(const char* target) {
  ExecutionContext context;
  context.thread_pool = &DefaultThreadPool();
  for (const Kind& kind : kKinds) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      std::mt19937_64 rng(seed);
      Case c(kind, rng);
      const std::string what = StrCat(target, ", seed ", seed, ": ", c.ToString());
      for (int64_t i = 0; i < c.out.size(); ++i) c.out.Set(i, std::nan(""));
      const Status status =
          RunOp(**OpRegistry::Global().Get("grouped_matmul"), Platform::kHost, c.call(), context);
      ASSERT_TRUE(status.ok()) << status.ToString() << " " << what;
      c.ExpectRight(c.out, what);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GroupedMatmulOnHost, IsTheProductOnRandomProblems) { ForEachTarget(ExpectRightProducts); }

// The product is finite: so is each factor on the way to it.
TEST(GroupedMatmulOnHost, TakesLargeScales) {
  ForEachTarget([](const char* target) {
    std::mt19937_64 rng(1);
    Case c({kF32, DType::kF8E4M3FN, kF32, 32, 40, 8, 1}, rng);
    for (int64_t i = 0; i < c.scale.size(); ++i) c.scale.Set(i, 2e36 + 1e34 * double(i % 7));
    ExecutionContext context;
    context.thread_pool = &DefaultThreadPool();
    ASSERT_TRUE(
        RunOp(**OpRegistry::Global().Get("grouped_matmul"), Platform::kHost, c.call(), context)
            .ok());
    c.ExpectRight(c.out, target);
  });
}

// Runtimes give tensors without elements no memory.
TEST(GroupedMatmulOnHost, TakesNoRowsWithoutMemory) {
  const OwnedTensor sizes(kI32, {3}), rhs(kF32, {3, 8, 4});
  const int64_t lhs_shape[] = {0, 8}, out_shape[] = {0, 4};
  const TensorView args[] = {{nullptr, kF32, lhs_shape}, rhs.view(), sizes.view()};
  const TensorView result = {nullptr, kF32, out_shape};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("out_dtype", DTypeName(kF32)).ok());
  ExecutionContext context;
  context.thread_pool = &DefaultThreadPool();
  const Status status = RunOp(**OpRegistry::Global().Get("grouped_matmul"), Platform::kHost,
                              {args, {&result, 1}, &attributes}, context);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

}  // namespace
}  // namespace xla_gpu::grouped_matmul
