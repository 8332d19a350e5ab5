// The names that device code (src/cuda/numeric.cuh) gives to element types, for -D defines.
#ifndef XLA_GPU_CUDA_DEVICE_TYPES_H_
#define XLA_GPU_CUDA_DEVICE_TYPES_H_

#include "src/core/dtype.h"

namespace xla_gpu::cuda {

// "BF16", "F16", "E4M3", "E5M2", and "float" for f32.
inline const char* DeviceType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3FN:
      return "E4M3";
    case DType::kF8E5M2:
      return "E5M2";
    default:
      return "float";
  }
}

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_DEVICE_TYPES_H_
