// The marks of profiles (src/core/profile.h) in CUDA streams: events.
#include <memory>

#include "src/core/profile.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {
namespace {

struct Event {
  CUevent event = nullptr;
  CUcontext context = nullptr;  // the one that was current, as the stream's is in a call
};

void Release(void* mark) {
  const std::unique_ptr<Event> event(static_cast<Event*>(mark));
  if (event != nullptr && event->event != nullptr) (*GetDriver())->cuEventDestroy(event->event);
}

void* Record(void* stream) {
  const StatusOr<const DriverApi*>& opened = GetDriver();
  if (!opened.ok()) return nullptr;
  const DriverApi& driver = **opened;
  if (IsCapturing(driver, static_cast<CUstream>(stream))) return nullptr;
  std::unique_ptr<Event, void (*)(void*)> made(new Event, Release);
  if (driver.cuCtxGetCurrent(&made->context) != kCudaSuccess || made->context == nullptr ||
      driver.cuEventCreate(&made->event, 0) != kCudaSuccess ||
      driver.cuEventRecord(made->event, static_cast<CUstream>(stream)) != kCudaSuccess) {
    return nullptr;
  }
  return made.release();
}

StatusOr<double> Microseconds(void* begin, void* end) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  const Event& last = *static_cast<const Event*>(end);
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(*driver, driver->cuCtxPushCurrent(last.context),
                                       "cuCtxPushCurrent for a profile"));
  CUresult result = driver->cuEventSynchronize(last.event);
  float milliseconds = 0;
  if (result == kCudaSuccess) {
    result = driver->cuEventElapsedTime(&milliseconds, static_cast<const Event*>(begin)->event,
                                        last.event);
  }
  CUcontext popped = nullptr;
  driver->cuCtxPopCurrent(&popped);
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(*driver, result, "waiting for what a profile times"));
  return 1e3 * static_cast<double>(milliseconds);
}

[[maybe_unused]] const bool kInstalled = [] {
  SetStreamMarks(Platform::kCuda, {Record, Microseconds, Release});
  return true;
}();

}  // namespace
}  // namespace xla_gpu::cuda
