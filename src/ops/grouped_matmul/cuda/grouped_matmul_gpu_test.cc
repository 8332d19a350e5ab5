// grouped_matmul on a GPU against f64; skipped where there is none. XLA_GPU_TEST_CASES and
// XLA_GPU_TEST_GUARDS as in paged_attention_gpu_test.cc.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "src/core/op_registry.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/grouped_matmul/random_case.h"

namespace xla_gpu::grouped_matmul {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

// On Hopper: each of its tiles, parts of panels and of stages, matrices of 8 bits, then what its
// kernel does not take.
constexpr Kind kKinds[] = {{kBF16, kBF16, kF32, 256, 192, 5},
                           {kBF16, kBF16, kBF16, 200, 136, 20},
                           {kF16, kF16, kF16, 64, 256, 40},
                           {kBF16, kBF16, kBF16, 328, 264, 150},
                           {kF16, kF16, kF32, 8, 8, 300},
                           {kBF16, DType::kF8E4M3FN, kBF16, 200, 272, 5, 1},
                           {kBF16, DType::kI8, kF32, 256, 128, 20, 4},
                           {kF16, DType::kF8E5M2, kF16, 320, 144, 40},
                           {kF16, DType::kI8, kF32, 72, 400, 60, 1},
                           {kBF16, DType::kF8E5M2, kBF16, 328, 272, 200, 1},
                           {kF16, DType::kF8E4M3FN, kF32, 128, 16, 200, 2},
                           {kBF16, kBF16, kBF16, 100, 24, 9},
                           {kF32, kF32, kF32, 70, 130, 30},
                           {kF32, kF32, kBF16, 33, 65, 5},
                           {kBF16, DType::kF8E4M3FN, kF32, 96, 70, 8, 3},
                           {kF32, DType::kF8E5M2, kF32, 20, 40, 60},
                           {kBF16, DType::kI8, kBF16, 384, 33, 8, 2}};

class GroupedMatmulGpuTest : public cuda::GpuTest {};

TEST_F(GroupedMatmulGpuTest, IsTheProductOnRandomProblems) {
  const Op& op = **OpRegistry::Global().Get("grouped_matmul");
  int cases = 0;
  for (const Kind& kind : kKinds) {
    for (const uint64_t seed : cuda::Seeds(cuda::CasesPerKind())) {
      ++cases;
      std::mt19937_64 rng(seed);
      const Case c(kind, rng);
      const std::string what = StrCat("seed ", seed, ": ", c.ToString());
      const auto got = cuda::RunOnGpu(op, c.call(), {}, nullptr, seed % 4 == 0 ? &rng : nullptr);
      ASSERT_TRUE(got.ok()) << got.status().ToString() << "\n" << what;
      OwnedTensor out(c.out.dtype, c.out.shape);
      std::memcpy(out.data.get(), (*got)[0].data(), (*got)[0].size());
      c.ExpectRight(out, what);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d problems\n", cases);
}

}  // namespace
}  // namespace xla_gpu::grouped_matmul
