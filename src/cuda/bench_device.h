// A device for programs that bring their own tensors and time what runs on them (xla-gpu tune):
// memory, and the time of what is enqueued. One thread uses it, on the default stream.
#ifndef XLA_GPU_CUDA_BENCH_DEVICE_H_
#define XLA_GPU_CUDA_BENCH_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/device.h"

namespace xla_gpu::cuda {

class BenchDevice {
 public:
  // Its primary context is current in this thread while the object lives.
  static StatusOr<std::unique_ptr<BenchDevice>> Open(int ordinal);
  virtual ~BenchDevice() = default;

  virtual const DeviceInfo& info() const = 0;
  // Freed with this object.
  virtual StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual Status CopyIn(void* to, const void* from, int64_t bytes) = 0;
  virtual Status CopyOut(void* to, const void* from, int64_t bytes) = 0;
  virtual Status Fill(void* to, uint8_t byte, int64_t bytes) = 0;

  // Microseconds that the device takes for what `enqueue` puts on the default stream, none of whose
  // data is in the L2 cache before.
  virtual StatusOr<double> Time(const std::function<Status()>& enqueue) = 0;
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_BENCH_DEVICE_H_
