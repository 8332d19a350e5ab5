// update_kv_cache on CUDA.
#include <memory>

#include "src/cuda/device.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/update_kv_cache/cuda/config.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace update_kv_cache {
namespace {

constexpr char kName[] = "update_kv_cache";

XLA_GPU_REGISTER_KERNEL_SPECS(kName, CompileCheckSpecs);

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  const bool aligned = unaligned != nullptr;
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability(kName, *device));
  const Config config = ChooseConfig(problem, *device, aligned);
  XLA_GPU_ASSIGN_OR_RETURN(const auto update, cuda::GetKernel(config.kernel, device_ordinal,
                                                              config.launch.dynamic_shared_bytes));
  XLA_GPU_ASSIGN_OR_RETURN(const CacheCopy copy, CacheCopy::Load(problem, *device, aligned));
  return MakePlan(
      [problem, unaligned, update, copy, planned = config.params, launch = config.launch](
          const Call& call, const ExecutionContext& context) -> Status {
        const Buffers b = BuffersFromCall(problem, call);
        const cuda::Place found = cuda::FirstUnaligned({{b.key, "key"},
                                                        {b.value, "value"},
                                                        {b.k_cache_in, "kv_cache"},
                                                        {b.v_cache_in, "v_cache"},
                                                        {b.k_cache_out, "the result kv_cache"},
                                                        {b.v_cache_out, "the result v_cache"}});
        if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
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
        return update->Launch(launch, arguments, context.stream);
      });
}

}  // namespace
}  // namespace update_kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheCudaPlan(const Call& call, int device_ordinal) {
  using namespace update_kv_cache;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return cuda::MakePlanOfAnyAlignment(kName, [problem, device_ordinal](const auto& unaligned) {
    return MakeCudaPlan(problem, device_ordinal, unaligned);
  });
}

}  // namespace xla_gpu
