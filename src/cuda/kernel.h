// Kernels: embedded device source + defines -> compiled (NVRTC, cached) -> loaded -> launched.
#ifndef XLA_GPU_CUDA_KERNEL_H_
#define XLA_GPU_CUDA_KERNEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cuda {

// What to compile. Two equal specs share one kernel.
struct KernelSpec {
  std::string source;  // path of an embedded source: "src/ops/simple_add/cuda/simple_add.cu"
  std::string entry;   // name of its extern "C" __global__ function
  std::vector<std::string> defines = {};  // "HEAD_DIM=128", passed as -D
  // A text of the user's in place of the embedded source, which `source` then names in messages;
  // `entry` may be a name expression ("scale<float, 256>"). The options are NVRTC's.
  std::string text = {};
  std::vector<std::string> options = {};
  // Or machine code (a cubin, PTX or fatbin), which is loaded as it is.
  std::string image = {};
};

struct LaunchConfig {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;  // above 48 KiB is opted in when the kernel is loaded
  // These need a driver of CUDA 12.
  std::array<uint32_t, 3> cluster = {1, 1, 1};  // blocks
  bool cooperative = false;                     // all blocks run at once
  bool programmatic = false;  // may begin before the kernel in front of it in the stream ends
};

// A kernel loaded on one device. Launch only enqueues: it may be captured into a CUDA graph.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // `params`: one pointer to each kernel parameter, as cuLaunchKernel takes them.
  virtual Status Launch(const LaunchConfig& config, std::span<void* const> params,
                        void* stream) const = 0;
  // The bytes of each parameter as the machine code has them; nothing where the driver (before CUDA
  // 12.4) does not tell.
  virtual std::optional<std::vector<size_t>> ParameterSizes() const = 0;
};

// From memory, else from disk, else compiled in a child process; then loaded on the device.
// `max_dynamic_shared_bytes` is the most any launch will ask for.
StatusOr<std::shared_ptr<const Kernel>> GetKernel(const KernelSpec& spec, int device_ordinal,
                                                  uint32_t max_dynamic_shared_bytes);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_KERNEL_H_
