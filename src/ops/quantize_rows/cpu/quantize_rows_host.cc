// quantize_rows on the Host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/host_rows.h"
#include "src/ops/quantize_rows/quantize_rows.h"

namespace xla_gpu {
namespace quantize_rows {
namespace {

constexpr int64_t kElementsOfTask = 1 << 14;

// silu(g) * u of [g, u].
void ApplySiluMul(std::vector<float>& x) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) x[i] = x[i] / (1 + std::exp(-x[i])) * x[half + i];
  x.resize(half);
}

void QuantizeRow(const Problem& p, const Buffers& b, const std::vector<float>& weight,
                 int64_t row) {
  std::vector<float> x(static_cast<size_t>(p.x_columns()));
  LoadFloats(b.x, p.dtype, row * p.x_columns(), x);
  MultiplyRow(x, p.row_factor ? b.row_factor + row : nullptr, b.column_factor);
  if (p.activation == Activation::kSiluMul) ApplySiluMul(x);
  if (b.residual != nullptr) {
    std::vector<float> residual(x.size());
    LoadFloats(b.residual, p.residual_dtype, row * p.columns, residual);
    for (size_t i = 0; i < x.size(); ++i) x[i] += residual[i];
    StoreFloats(x, b.sum, p.residual_dtype, row * p.columns);
  }
  if (b.norm_weight != nullptr) NormalizeRow(x, weight, p.epsilon);
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));  // not a NaN
  const float scale = std::max(largest / kLargest, kLeastScale);
  uint8_t* const out = b.out + row * p.columns;
  for (size_t i = 0; i < x.size(); ++i) out[i] = FloatToF8E4M3FN(x[i] / scale);
  b.scale[row] = scale;
}

}  // namespace
}  // namespace quantize_rows

StatusOr<std::unique_ptr<Plan>> MakeQuantizeRowsHostPlan(const Call& call, int device_ordinal) {
  using namespace quantize_rows;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem p, ProblemFromCall(call));
  return MakePlan([p](const Call& call, const ExecutionContext& context) {
    const Buffers b = BuffersFromCall(p, call);
    std::vector<float> weight;
    if (b.norm_weight != nullptr) {
      weight.resize(static_cast<size_t>(p.columns));
      LoadFloats(b.norm_weight, p.norm_dtype, 0, weight);
    }
    const int64_t rows_of_task = std::max<int64_t>(kElementsOfTask / p.x_columns(), 1);
    ParallelForRanges(*context.thread_pool, p.rows, rows_of_task, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) QuantizeRow(p, b, weight, row);
    });
    return OkStatus();
  });
}

}  // namespace xla_gpu
