// grouped_matmul on a GPU against f64; skipped where there is none.
#include "src/ops/grouped_matmul/random_case.h"
#include "src/ops/paged_cache/gpu_cases_testing.h"

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
  paged_cache::ExpectOnGpu<Case>(
      "grouped_matmul", kKinds,
      [](const Case& c, const auto& got, const std::string& what) { c.ExpectRight(got[0], what); });
}

}  // namespace
}  // namespace xla_gpu::grouped_matmul
