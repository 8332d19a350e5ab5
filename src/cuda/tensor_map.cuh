// CUtensorMap, which the Host hands to kernels. Included by Host and device code.
#ifndef XLA_GPU_CUDA_TENSOR_MAP_CUH_
#define XLA_GPU_CUDA_TENSOR_MAP_CUH_

namespace xla_gpu {

struct alignas(64) TensorMap {  // as the driver writes it
  char bytes[128];
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CUDA_TENSOR_MAP_CUH_
