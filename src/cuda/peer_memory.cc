#include "src/cuda/peer_memory.h"

#include <cstdint>

#include "src/core/strings.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {
namespace {

// The device in whose context the caller is reaches the peer's memory.
Status EnableAccess(const DriverApi& driver, int device, int peer) {
  int can = 0;
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(driver, driver.cuDeviceCanAccessPeer(&can, device, peer),
                                       "cuDeviceCanAccessPeer"));
  if (can == 0) {
    return FailedPrecondition("cuda: device ", device, " cannot reach the memory of device ", peer);
  }
  XLA_GPU_ASSIGN_OR_RETURN(const CUcontext context, PrimaryContext(driver, peer));
  const CUresult result = driver.cuCtxEnablePeerAccess(context, 0);
  if (result == kCudaErrorPeerAccessAlreadyEnabled) return OkStatus();
  return DriverStatus(driver, result, "cuCtxEnablePeerAccess");
}

StatusOr<void*> AllocateFilled(const DriverApi& driver, size_t bytes, unsigned char value) {
  uint64_t address = 0;
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(driver, driver.cuMemAlloc(&address, bytes), "cuMemAlloc"));
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(
      driver, driver.cuMemsetD8Async(address, value, bytes, nullptr), "cuMemsetD8Async"));
  XLA_GPU_RETURN_IF_ERROR(
      DriverStatus(driver, driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize"));
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

StatusOr<std::vector<void*>> AllocatePeerMemory(std::span<const int> devices, size_t bytes,
                                                unsigned char value) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  std::vector<void*> memory;
  for (const int device : devices) {
    const ScopedPrimaryContext scope(*driver, device);
    XLA_GPU_RETURN_IF_ERROR(scope.status());
    for (const int peer : devices) {
      if (peer != device) XLA_GPU_RETURN_IF_ERROR(EnableAccess(*driver, device, peer));
    }
    XLA_GPU_ASSIGN_OR_RETURN(void* address, AllocateFilled(*driver, bytes, value));
    memory.push_back(address);
  }
  return memory;
}

}  // namespace xla_gpu::cuda
