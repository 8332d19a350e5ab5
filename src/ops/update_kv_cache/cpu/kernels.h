// The Host kernel of update_kv_cache, compiled for several instruction sets (kernels.cc).
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_KERNELS_H_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_KERNELS_H_

#include <cstdint>

#include "src/core/dtype.h"

namespace xla_gpu::update_kv_cache {

// to[i] = from[i] / divisor in the cache's type, i < n: rounded to nearest even, saturated in fp8,
// the same bits as the scalar conversions of float_types.h.
struct RowConversion {
  DType from_dtype;  // f32, bf16, f16
  DType to_dtype;    // f32, bf16, f16, f8e4m3fn, f8e5m2
  const void* from;
  void* to;
  int64_t n;
  float divisor;
};
void ConvertRow(const RowConversion& task);

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_KERNELS_H_
