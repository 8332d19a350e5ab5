#include "src/cuda/bench_device.h"

#include <algorithm>

#include "src/core/strings.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {
namespace {

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
size_t Size(int64_t bytes) { return static_cast<size_t>(bytes); }

class Device final : public BenchDevice {
 public:
  Device(const DriverApi& driver, const DeviceInfo& info)
      : driver_(driver), info_(info), context_(driver, info.ordinal) {}
  ~Device() override {
    for (const uint64_t pointer : memory_) driver_.cuMemFree(pointer);
    for (const CUevent event : {begin_, end_}) {
      if (event != nullptr) driver_.cuEventDestroy(event);
    }
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Status Init() {
    XLA_GPU_RETURN_IF_ERROR(context_.status());
    for (CUevent* event : {&begin_, &end_}) {
      XLA_GPU_RETURN_IF_ERROR(Check(driver_.cuEventCreate(event, 0), "cuEventCreate"));
    }
    XLA_GPU_ASSIGN_OR_RETURN(swept_, Allocate(swept_bytes_));
    return OkStatus();
  }

  const DeviceInfo& info() const override { return info_; }

  StatusOr<void*> Allocate(int64_t bytes) override {
    uint64_t pointer = 0;
    XLA_GPU_RETURN_IF_ERROR(Check(driver_.cuMemAlloc(&pointer, std::max<size_t>(Size(bytes), 1)),
                                  StrCat("cuMemAlloc of ", bytes, " bytes")));
    memory_.push_back(pointer);
    return reinterpret_cast<void*>(pointer);
  }
  Status CopyIn(void* to, const void* from, int64_t bytes) override {
    return Check(driver_.cuMemcpyHtoD(Address(to), from, Size(bytes)), "cuMemcpyHtoD");
  }
  Status CopyOut(void* to, const void* from, int64_t bytes) override {
    return Check(driver_.cuMemcpyDtoH(to, Address(from), Size(bytes)), "cuMemcpyDtoH");
  }
  Status Fill(void* to, uint8_t byte, int64_t bytes) override {
    return Check(driver_.cuMemsetD8Async(Address(to), byte, Size(bytes), nullptr),
                 "cuMemsetD8Async");
  }

  StatusOr<double> Time(const std::function<Status()>& enqueue) override {
    // It drives all else out of the L2 cache, and gives the host the time to enqueue.
    XLA_GPU_RETURN_IF_ERROR(Fill(swept_, 0, swept_bytes_));
    XLA_GPU_RETURN_IF_ERROR(Check(driver_.cuEventRecord(begin_, nullptr), "cuEventRecord"));
    XLA_GPU_RETURN_IF_ERROR(enqueue());
    XLA_GPU_RETURN_IF_ERROR(Check(driver_.cuEventRecord(end_, nullptr), "cuEventRecord"));
    XLA_GPU_RETURN_IF_ERROR(Check(driver_.cuEventSynchronize(end_), "waiting for the GPU"));
    float milliseconds = 0;
    XLA_GPU_RETURN_IF_ERROR(
        Check(driver_.cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime"));
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  Status Check(CUresult result, const std::string& what) const {
    return DriverStatus(driver_, result, what);
  }

  const DriverApi& driver_;
  const DeviceInfo& info_;
  const ScopedPrimaryContext context_;
  std::vector<uint64_t> memory_;
  CUevent begin_ = nullptr, end_ = nullptr;
  const int64_t swept_bytes_ = std::max<int64_t>(4 * info_.l2_bytes, int64_t{256} << 20);
  void* swept_ = nullptr;
};

}  // namespace

StatusOr<std::unique_ptr<BenchDevice>> BenchDevice::Open(int ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  XLA_GPU_ASSIGN_OR_RETURN(const DeviceInfo* info, GetDeviceInfo(ordinal));
  auto device = std::make_unique<Device>(*driver, *info);
  XLA_GPU_RETURN_IF_ERROR(device->Init());
  return std::unique_ptr<BenchDevice>(std::move(device));
}

}  // namespace xla_gpu::cuda
