#include "src/cuda/device.h"

#include <map>
#include <memory>
#include <mutex>

#include "src/core/fill.h"
#include "src/core/fork.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {
namespace {

StatusOr<DeviceInfo> ReadDevice(const DriverApi& driver, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(driver, driver.cuDeviceGet(&device, ordinal),
                                       StrCat("cuDeviceGet of device ", ordinal)));
  char name[256] = "";
  XLA_GPU_RETURN_IF_ERROR(
      DriverStatus(driver, driver.cuDeviceGetName(name, sizeof(name), device), "cuDeviceGetName"));
  info.name = name;
  size_t memory = 0;
  XLA_GPU_RETURN_IF_ERROR(
      DriverStatus(driver, driver.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem"));
  info.memory_bytes = static_cast<int64_t>(memory);

  int shared = 0, l2 = 0;
  const std::pair<DeviceAttribute, int*> attributes[] = {
      {kComputeCapabilityMajor, &info.compute_major},
      {kComputeCapabilityMinor, &info.compute_minor},
      {kMultiprocessorCount, &info.num_sms},
      {kMaxSharedMemoryPerBlockOptin, &shared},
      {kL2CacheSize, &l2},
  };
  for (const auto& [attribute, value] : attributes) {
    XLA_GPU_RETURN_IF_ERROR(
        DriverStatus(driver, driver.cuDeviceGetAttribute(value, attribute, device),
                     StrCat("cuDeviceGetAttribute ", static_cast<int>(attribute))));
  }
  info.max_shared_memory_per_block = shared;
  info.l2_bytes = l2;
  info.tensor_maps = info.compute_major >= 9 && driver.cuTensorMapEncodeTiled != nullptr;
  return info;
}

struct ReadDevices {
  std::mutex mutex;
  std::map<int, std::unique_ptr<const DeviceInfo>> devices;
};
constinit PerProcess<ReadDevices> read_devices;

// The device of this thread's context; 0 where there is none, as while XLA instantiates a call.
int CurrentCudaDevice() {
  const StatusOr<const DriverApi*>& opened = GetDriver();
  if (!opened.ok()) return 0;
  const DriverApi* driver = *opened;
  CUcontext context = nullptr;
  // Asking for the device without a context would be an error, which debuggers report.
  if (driver->cuCtxGetCurrent(&context) != kCudaSuccess || context == nullptr) return 0;
  CUdevice device = 0;
  return driver->cuCtxGetDevice(&device) == kCudaSuccess ? device : 0;
}

Status FillCuda(void* data, uint8_t value, int64_t bytes, void* stream) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  return DriverStatus(
      *driver,
      driver->cuMemsetD8Async(reinterpret_cast<uint64_t>(data), value, static_cast<size_t>(bytes),
                              static_cast<CUstream>(stream)),
      "cuMemsetD8Async");
}

[[maybe_unused]] const bool kInstalled = [] {
  SetCurrentDeviceFn(Platform::kCuda, CurrentCudaDevice);
  SetFillFn(Platform::kCuda, FillCuda);
  return true;
}();

}  // namespace

std::string DeviceInfo::Arch() const {
  // From Hopper on, the instructions that matter (wgmma, tcgen05) are in the "a" variants only.
  return StrCat("sm_", compute_major, compute_minor, compute_major >= 9 ? "a" : "");
}

const std::vector<DeviceInfo>& KnownDevices() {
  static const auto* devices = [] {
    struct Known {
      const char* name;
      int major, minor, num_sms, shared_kib;
    };
    auto* all = new std::vector<DeviceInfo>;
    // Shared memory: the CUDA programming guide's table of compute capabilities.
    for (const Known& known : {Known{"A100", 8, 0, 108, 163}, Known{"A40", 8, 6, 84, 99},
                               Known{"AGX Orin", 8, 7, 16, 163}, Known{"L40S", 8, 9, 142, 99},
                               Known{"H200", 9, 0, 132, 227}, Known{"B200", 10, 0, 148, 227},
                               Known{"B300", 10, 3, 148, 227}, Known{"Thor", 11, 0, 20, 227},
                               Known{"RTX 5090", 12, 0, 170, 99}, Known{"GB10", 12, 1, 48, 99}}) {
      DeviceInfo& device = all->emplace_back();
      device.name = known.name;
      device.compute_major = known.major;
      device.compute_minor = known.minor;
      device.num_sms = known.num_sms;
      device.max_shared_memory_per_block = int64_t{known.shared_kib} * 1024;
      device.tensor_maps = known.major >= 9;
    }
    return all;
  }();
  return *devices;
}

std::vector<std::string> KnownArchs() {
  std::vector<std::string> archs;
  for (const DeviceInfo& device : KnownDevices()) archs.push_back(device.Arch());
  return archs;
}

Status CheckComputeCapability(std::string_view op, const DeviceInfo& device) {
  if (device.compute_major >= 8) return OkStatus();
  return Unimplemented(op, ": ", device.name, " has compute capability ", device.compute_major, ".",
                       device.compute_minor, "; the CUDA kernels need 8.0 or later");
}

Status CopyOnDevice(void* to, const void* from, int64_t bytes, void* stream) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  return DriverStatus(
      *driver,
      driver->cuMemcpyDtoDAsync(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from),
                                static_cast<size_t>(bytes), static_cast<CUstream>(stream)),
      "cuMemcpyDtoDAsync");
}

StatusOr<int> DeviceCount() {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  int count = 0;
  XLA_GPU_RETURN_IF_ERROR(
      DriverStatus(*driver, driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

StatusOr<const DeviceInfo*> GetDeviceInfo(int ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  auto& [mutex, devices] = read_devices.Get();
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = devices.find(ordinal); found != devices.end()) return found->second.get();
  XLA_GPU_ASSIGN_OR_RETURN(int count, DeviceCount());
  if (ordinal < 0 || ordinal >= count) {
    return InvalidArgument("cuda: device ", ordinal, " does not exist; this process sees ", count,
                           " (CUDA_VISIBLE_DEVICES limits them)");
  }
  XLA_GPU_ASSIGN_OR_RETURN(DeviceInfo info, ReadDevice(*driver, ordinal));
  auto kept = std::make_unique<const DeviceInfo>(std::move(info));
  return devices.emplace(ordinal, std::move(kept)).first->second.get();
}

}  // namespace xla_gpu::cuda
