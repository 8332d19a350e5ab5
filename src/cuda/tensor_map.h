// Tensor maps: what the tensor copy engine of Hopper and later has to know of a tensor. They are
// made on the Host and passed to kernels by value.
#ifndef XLA_GPU_CUDA_TENSOR_MAP_H_
#define XLA_GPU_CUDA_TENSOR_MAP_H_

#include <array>
#include <cstdint>

#include "src/core/status.h"

namespace xla_gpu::cuda {

// A tensor of 16-bit elements, the innermost dimension first, and the box that one instruction
// copies. The box's innermost 128 bytes are swizzled in shared memory: 16-byte piece c of row r
// lies at place c ^ (r % 8). What lies outside of the tensor is copied as zeros.
struct TensorMapSpec {
  std::array<uint64_t, 5> dims = {};
  std::array<uint64_t, 4> strides = {};  // in bytes, from dimension 1 on
  std::array<uint32_t, 5> box = {};
};

// Whether the copy engine takes it at any address that is a multiple of 16.
bool IsAccepted(const TensorMapSpec& spec);

// Writes the 128 bytes at `map`, a multiple of 64, for a tensor at `base`. No call to the device,
// so that it may stand before a launch that is captured. An error where the driver is older
// than 12.0.
Status EncodeTensorMap(const TensorMapSpec& spec, const void* base, void* map);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_TENSOR_MAP_H_
