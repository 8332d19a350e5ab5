// CUDA devices as the driver sees them. libcuda is opened at run time: without it every call here
// gives an error that says so, and nothing else of the library is affected.
#ifndef XLA_GPU_CUDA_DEVICE_H_
#define XLA_GPU_CUDA_DEVICE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cuda {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  int64_t max_shared_memory_per_block = 0;  // bytes, after opting in
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  bool tensor_maps = false;  // it has a tensor copy engine, and its driver describes tensors to it

  // What NVRTC is asked for: "sm_90a", "sm_100a" where the architecture has special instructions,
  // else "sm_80", "sm_89", ...
  std::string Arch() const;
};

// One GPU of each architecture that is supported, as far as kernels are chosen by it: for compiling
// without a GPU. The capability, num_sms, max_shared_memory_per_block and tensor_maps are set.
const std::vector<DeviceInfo>& KnownDevices();
// What Arch gives for them.
std::vector<std::string> KnownArchs();

// An error of `op`, whose kernels need compute capability 8.0, if the device has less.
Status CheckComputeCapability(std::string_view op, const DeviceInfo& device);

// Enqueues a copy on `stream` between two places of the memory of its device.
Status CopyOnDevice(void* to, const void* from, int64_t bytes, void* stream);

StatusOr<int> DeviceCount();
// Read once a device, then from memory.
StatusOr<const DeviceInfo*> GetDeviceInfo(int ordinal);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_DEVICE_H_
