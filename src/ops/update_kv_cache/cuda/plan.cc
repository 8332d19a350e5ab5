// update_kv_cache on CUDA.
#include <memory>

#include "src/cuda/device.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/update_kv_cache/cuda/config.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu {

XLA_GPU_REGISTER_KERNEL_SPECS("update_kv_cache", update_kv_cache::CompileCheckSpecs);

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheCudaPlan(const Call& call, int device_ordinal) {
  using namespace update_kv_cache;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability("update_kv_cache", *device));
  XLA_GPU_ASSIGN_OR_RETURN(const auto update, cuda::GetKernel(UpdateSpec(problem), device_ordinal,
                                                              /*max_dynamic_shared_bytes=*/0));
  XLA_GPU_ASSIGN_OR_RETURN(const CacheCopy copy, CacheCopy::Load(problem, *device));
  return MakePlan([problem, update, copy, planned = PlanParams(problem, device->num_sms)](
                      const Call& call, const ExecutionContext& context) -> Status {
    const Buffers b = BuffersFromCall(problem, call);
    XLA_GPU_RETURN_IF_ERROR(
        cuda::CheckAligned("update_kv_cache", {{b.key, "key"},
                                               {b.value, "value"},
                                               {b.k_cache_in, "kv_cache"},
                                               {b.v_cache_in, "v_cache"},
                                               {b.k_cache_out, "the result kv_cache"},
                                               {b.v_cache_out, "the result v_cache"}}));
    XLA_GPU_RETURN_IF_ERROR(
        copy.Launch(b.k_cache_in, b.k_cache_out, b.cache_bytes, context.stream));
    if (problem.separate_v) {
      XLA_GPU_RETURN_IF_ERROR(
          copy.Launch(b.v_cache_in, b.v_cache_out, b.cache_bytes, context.stream));
    }
    if (problem.tokens == 0) return OkStatus();

    Params params = planned;
    SetTensors(problem, b, params);
    void* const arguments[] = {&params};
    return update->Launch(UpdateLaunch(params), arguments, context.stream);
  });
}

}  // namespace xla_gpu
