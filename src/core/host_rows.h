// What ops compute with rows of numbers on the Host.
#ifndef XLA_GPU_CORE_HOST_ROWS_H_
#define XLA_GPU_CORE_HOST_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "src/core/ceil_div.h"
#include "src/core/thread_pool.h"

namespace xla_gpu {

// f(begin, end) of ranges that make up [0, n), in tasks of `of_task`, at least 1, each.
template <typename F>
void ParallelForRanges(ThreadPool& pool, int64_t n, int64_t of_task, const F& f) {
  pool.ParallelFor(CeilDiv(n, of_task),
                   [&](int64_t task) { f(task * of_task, std::min((task + 1) * of_task, n)); });
}

// Multiplies a row by its factor and each column's; null: none.
inline void MultiplyRow(std::span<float> x, const float* factor, const float* of_columns) {
  if (factor == nullptr && of_columns == nullptr) return;
  const float of_row = factor != nullptr ? *factor : 1;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= of_columns != nullptr ? of_row * of_columns[i] : of_row;
  }
}

// RMSNorm: x * rsqrt(mean(x^2) + epsilon) * weight.
inline void NormalizeRow(std::span<float> x, std::span<const float> weight, float epsilon) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const auto mean = static_cast<float>(squares / static_cast<double>(x.size()));
  const float norm = 1 / std::sqrt(mean + epsilon);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= norm * weight[i];
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_HOST_ROWS_H_
