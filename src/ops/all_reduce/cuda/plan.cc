// all_reduce on CUDA.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/peer_memory.h"
#include "src/ops/all_reduce/all_reduce.h"
#include "src/ops/all_reduce/exchange.cuh"

namespace xla_gpu {
namespace all_reduce {
namespace {

constexpr char kName[] = "all_reduce";
constexpr int64_t kThreads = 256;

// Each device's, made at the first plan for these devices and kept.
StatusOr<std::vector<void*>> MemoryOf(const std::vector<int>& devices) {
  static std::mutex& mutex = *new std::mutex;
  static auto& made = *new std::map<std::vector<int>, std::vector<void*>>;
  const std::scoped_lock lock(mutex);
  if (const auto found = made.find(devices); found != made.end()) return found->second;
  const size_t bytes = sizeof(Exchange) + kTurns * devices.size() * kMostBytes;
  static_assert(kEmpty == 0xffffffff);
  XLA_GPU_ASSIGN_OR_RETURN(auto memory, cuda::AllocatePeerMemory(devices, bytes, 0xff));
  return made[devices] = memory;
}

cuda::KernelSpec SpecOf(DType dtype, size_t devices) {
  return {"src/ops/all_reduce/cuda/all_reduce.cu",
          kName,
          {StrCat("TYPE=", InfoOf(dtype).device), StrCat("DEVICES=", devices),
           StrCat("THREADS=", kThreads)}};
}

std::vector<cuda::KernelSpec> KnownSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const size_t devices : {1, 2, kMostDevices}) {
      specs.push_back(SpecOf(dtype, devices));
    }
  }
  return specs;
}

XLA_GPU_REGISTER_KERNEL_SPECS(kName, KnownSpecs);

}  // namespace
}  // namespace all_reduce

StatusOr<std::unique_ptr<Plan>> MakeAllReduceCudaPlan(const Call& call, int device_ordinal) {
  using namespace all_reduce;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability(kName, *device));
  const std::vector<int> devices = DevicesOf(call);
  const TensorView& x = call.args[0];
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<void*> memory, MemoryOf(devices));
  // On all devices: to load another's while this one waits for it could take for ever.
  const cuda::KernelSpec spec = SpecOf(x.dtype, devices.size());
  std::shared_ptr<const cuda::Kernel> kernel;
  for (const int ordinal : devices) {
    XLA_GPU_ASSIGN_OR_RETURN(auto loaded, cuda::GetKernel(spec, ordinal, 0));
    if (ordinal == device_ordinal) kernel = std::move(loaded);
  }
  if (kernel == nullptr) {  // an error if it runs: XLA compiles while any device is current
    return MakePlan([=](const Call&, const ExecutionContext&) {
      return InvalidArgument(kName, ": the call runs on device ", device_ordinal,
                             ", which is not in attribute 'devices'");
    });
  }
  const auto rank = static_cast<int>(std::ranges::find(devices, device_ordinal) - devices.begin());
  std::array<void*, kMostDevices> from_here{};
  std::rotate_copy(memory.begin(), memory.begin() + rank, memory.end(), from_here.begin());
  // All blocks run at once, so that none waits for a part whose sender waits for its own turn.
  const int64_t blocks = CeilDiv(x.size_bytes(), 16 * kThreads);
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<uint32_t>(std::min<int64_t>(blocks, device->num_sms));
  launch.block[0] = kThreads;
  return MakePlan([=, count = static_cast<int32_t>(x.num_elements())](
                      const Call& call, const ExecutionContext& context) {
    if (count == 0) return OkStatus();
    const void* x = call.args[0].data;
    void* out = call.results[0].data;
    auto elements = count;
    int own = rank;
    auto parts = from_here;
    void* const params[] = {&x, &out, &elements, &own, &parts};
    return kernel->Launch(launch, params, context.stream);
  });
}

}  // namespace xla_gpu
