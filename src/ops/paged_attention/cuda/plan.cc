// paged_attention on CUDA: Problem -> Config -> kernels, compiled and loaded here; a run only
// launches them, so that it may be captured into a graph and replayed with other lengths.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/cuda/tuning.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, const Config& config, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  const auto [spec, launch, pairs] = MakeLaunches(problem, config).schedule;
  std::shared_ptr<const cuda::Kernel> schedule;
  if (config.decode_cluster == 0) {  // else it is not needed
    XLA_GPU_ASSIGN_OR_RETURN(schedule, cuda::GetKernel(spec, device_ordinal, 0));
  }
  XLA_GPU_ASSIGN_OR_RETURN(auto attention, Attention::Load(problem, config, device_ordinal));
  return MakePlan(
      [problem, config, unaligned, schedule, launch = launch, attention = std::move(attention)](
          const Call& call, const ExecutionContext& context) -> Status {
        if (problem.tokens == 0) return OkStatus();
        const Buffers buffers = BuffersFromCall(problem, call);
        const cuda::Place found = cuda::FirstUnaligned({{buffers.query, "query"},
                                                        {buffers.k_cache, "kv_cache"},
                                                        {buffers.v_cache, "v_cache"},
                                                        {buffers.out, "out"}});
        if (found && config.aligned) {
          return unaligned != nullptr ? unaligned->Run(found, call, context)
                                      : cuda::CheckAligned("paged_attention", {found});
        }
        XLA_GPU_ASSIGN_OR_RETURN(Params params, attention.ParamsOf(buffers));
        if (schedule != nullptr) {
          void* const arguments[] = {&params};
          XLA_GPU_RETURN_IF_ERROR(schedule->Launch(launch, arguments, context.stream));
        }
        return attention.Launch(params, context.stream);
      });
}

}  // namespace paged_attention

XLA_GPU_REGISTER_KERNEL_SPECS("paged_attention", paged_attention::CompileCheckSpecs);

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal) {
  using namespace paged_attention;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return cuda::MakePlanOfAnyAlignment(
      "paged_attention",
      [problem, device_ordinal](const auto& unaligned) -> StatusOr<std::unique_ptr<Plan>> {
        XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device,
                                 cuda::GetDeviceInfo(device_ordinal));
        XLA_GPU_ASSIGN_OR_RETURN(const Config config, unaligned != nullptr
                                                          ? TunedConfig(problem, *device)
                                                          : ChooseConfig(problem, *device, false));
        return MakeCudaPlan(problem, config, device_ordinal, unaligned);
      });
}

}  // namespace xla_gpu
