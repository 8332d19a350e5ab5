// Tensor maps: what the tensor copy engine of Hopper and later has to know of a tensor. They are
// made on the Host and passed to kernels by value.
#ifndef XLA_GPU_CUDA_TENSOR_MAP_H_
#define XLA_GPU_CUDA_TENSOR_MAP_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "src/core/status.h"

namespace xla_gpu::cuda {

// A tensor of 16-bit words, the innermost dimension first, and the box that one instruction
// copies. The box's innermost 128 bytes are swizzled in shared memory: 16-byte piece c of row r
// lies at place c ^ (r % 8). What lies outside of the tensor is copied as zeros.
struct TensorMapSpec {
  std::array<uint64_t, 5> dims = {};
  std::array<uint64_t, 4> strides = {};  // in bytes, from dimension 1 on
  std::array<uint32_t, 5> box = {};
};

// Whether the copy engine takes it at any address that is a multiple of 16.
bool IsAccepted(const TensorMapSpec& spec);

// The maps of tensors that differ in their address alone. The last kKept of them stay encoded: the
// driver takes 0.8 us for one, a good part of what a launch costs. Safe in several threads.
class TensorMaps {
 public:
  static constexpr size_t kKept = 1024;  // keys and values of 512 layers
  explicit TensorMaps(const TensorMapSpec& spec) : spec_(spec) {}

  // Writes the 128 bytes at `map`, a multiple of 64, for the tensor at `base`. No call to the
  // device, so that it may stand before a launch that is captured. An error where the driver is
  // older than 12.0.
  Status Write(const void* base, void* map);

 private:
  struct alignas(64) Encoded {
    char bytes[128];
  };
  const TensorMapSpec spec_;
  std::mutex mutex_;
  std::unordered_map<const void*, Encoded> encoded_;
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_TENSOR_MAP_H_
