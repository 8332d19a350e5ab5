// quantize_rows on the Host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/core/float_types.h"
#include "src/ops/quantize_rows/quantize_rows.h"

namespace xla_gpu {
namespace quantize_rows {
namespace {

constexpr int64_t kElementsOfTask = 1 << 14;

void Normalize(const Problem& p, const std::vector<float>& weight, std::vector<float>& x) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const float mean = static_cast<float>(squares) / static_cast<float>(p.columns);
  const float norm = 1 / std::sqrt(mean + p.epsilon);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= norm * weight[i];
}

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
  if (p.row_factor || p.column_factor) {
    const float of_row = p.row_factor ? b.row_factor[row] : 1;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= p.column_factor ? of_row * b.column_factor[i] : of_row;
    }
  }
  if (p.activation == Activation::kSiluMul) ApplySiluMul(x);
  if (b.residual != nullptr) {
    std::vector<float> residual(x.size());
    LoadFloats(b.residual, p.residual_dtype, row * p.columns, residual);
    for (size_t i = 0; i < x.size(); ++i) x[i] += residual[i];
    StoreFloats(x, b.sum, p.residual_dtype, row * p.columns);
  }
  if (b.norm_weight != nullptr) Normalize(p, weight, x);
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
    context.thread_pool->ParallelFor(CeilDiv(p.rows, rows_of_task), [&](int64_t task) {
      const int64_t end = std::min((task + 1) * rows_of_task, p.rows);
      for (int64_t row = task * rows_of_task; row < end; ++row) QuantizeRow(p, b, weight, row);
    });
    return OkStatus();
  });
}

}  // namespace xla_gpu
