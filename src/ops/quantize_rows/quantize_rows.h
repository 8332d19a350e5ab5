// quantize_rows: rows as fp8 with a scale each, after a norm or an activation if one is asked for.
#ifndef XLA_GPU_OPS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_
#define XLA_GPU_OPS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_

#include <cstdint>
#include <memory>

#include "src/core/op.h"
#include "src/ops/quantize_rows/numbers.cuh"

namespace xla_gpu {
namespace quantize_rows {

enum class Activation { kNone, kSiluMul };

// The types and sizes of a checked call.
struct Problem {
  DType dtype = DType::kInvalid;           // f32, bf16, f16
  DType norm_dtype = DType::kInvalid;      // likewise; kInvalid without a norm
  DType residual_dtype = DType::kInvalid;  // likewise
  bool row_factor = false;
  bool column_factor = false;
  Activation activation = Activation::kNone;
  int64_t rows = 0;
  int64_t columns = 0;  // of the result, at least 1
  float epsilon = 0;

  int64_t x_columns() const { return activation == Activation::kNone ? columns : 2 * columns; }
};

// As the schema has it; an error where shapes do not fit.
StatusOr<Problem> ProblemFromCall(const Call& call);

struct Buffers {
  const void* x;
  const void* norm_weight;     // null without
  const float* row_factor;     // null without
  const float* column_factor;  // null without
  const void* residual;        // null without, as is sum
  uint8_t* out;
  float* scale;
  void* sum;
};
Buffers BuffersFromCall(const Problem& problem, const Call& call);

}  // namespace quantize_rows

StatusOr<std::unique_ptr<Plan>> MakeQuantizeRowsHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeQuantizeRowsCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_
