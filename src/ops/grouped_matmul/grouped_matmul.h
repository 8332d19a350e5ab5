// grouped_matmul: rows sorted by group, times their group's matrix.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_GROUPED_MATMUL_H_
#define XLA_GPU_OPS_GROUPED_MATMUL_GROUPED_MATMUL_H_

#include <cstdint>
#include <memory>

#include "src/core/op.h"

namespace xla_gpu {
namespace grouped_matmul {

// The types and sizes of a checked call.
struct Problem {
  DType lhs_dtype = DType::kInvalid;  // f32, bf16, f16
  DType rhs_dtype = DType::kInvalid;  // lhs_dtype, or one of 8 bits
  DType out_dtype = DType::kInvalid;  // f32, bf16, f16
  int64_t rows = 0;
  int64_t inner = 0;    // K, at least 1
  int64_t columns = 0;  // N
  int64_t groups = 0;
  int64_t scale_blocks = 0;  // of K, each with a scale; 0: rhs has none
};

// As grouped_matmul's schema has it; an error where shapes do not fit.
StatusOr<Problem> ProblemFromCall(const Call& call);

struct Buffers {
  const void* lhs;
  const void* rhs;
  const int32_t* group_sizes;
  const float* rhs_scale;  // null without
  void* out;
};
Buffers BuffersFromCall(const Call& call);

}  // namespace grouped_matmul

StatusOr<std::unique_ptr<Plan>> MakeGroupedMatmulHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeGroupedMatmulCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_GROUPED_MATMUL_H_
