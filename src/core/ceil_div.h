// Integer division that rounds up.
#ifndef XLA_GPU_CORE_CEIL_DIV_H_
#define XLA_GPU_CORE_CEIL_DIV_H_

#include <cstdint>

namespace xla_gpu {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_CEIL_DIV_H_
