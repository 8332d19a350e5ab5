// Memory of several GPUs of this process that kernels of each of them reach.
#ifndef XLA_GPU_CUDA_PEER_MEMORY_H_
#define XLA_GPU_CUDA_PEER_MEMORY_H_

#include <cstddef>
#include <span>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cuda {

// `bytes` on each of the devices, in their order; each octet is `value`. It is never freed. An
// error where two of them cannot reach each other's memory.
StatusOr<std::vector<void*>> AllocatePeerMemory(std::span<const int> devices, size_t bytes,
                                                unsigned char value);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_PEER_MEMORY_H_
