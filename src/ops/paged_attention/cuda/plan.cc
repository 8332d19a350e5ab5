// paged_attention on CUDA: Problem -> Config -> kernels, compiled and loaded here; a run only
// launches them, so that it may be captured into a graph and replayed with other lengths.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

constexpr char kName[] = "paged_attention";

XLA_GPU_REGISTER_KERNEL_SPECS(kName, CompileCheckSpecs);

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const Config config,
                           ChooseConfig(problem, *device, unaligned != nullptr));
  const auto [spec, launch] = MakeLaunches(problem, config).schedule;
  std::shared_ptr<const cuda::Kernel> schedule;
  if (config.decode_cluster == 0) {  // else it is not needed
    XLA_GPU_ASSIGN_OR_RETURN(schedule, cuda::GetKernel(spec, device_ordinal, 0));
  }
  XLA_GPU_ASSIGN_OR_RETURN(auto attention, Attention::Load(problem, config, device_ordinal));
  return MakePlan([problem, unaligned, schedule, launch = launch, attention = std::move(attention)](
                      const Call& call, const ExecutionContext& context) -> Status {
    if (problem.tokens == 0) return OkStatus();
    const Buffers buffers = BuffersFromCall(problem, call);
    const cuda::Place found = cuda::FirstUnaligned({{buffers.query, "query"},
                                                    {buffers.k_cache, "kv_cache"},
                                                    {buffers.v_cache, "v_cache"},
                                                    {buffers.out, "out"}});
    if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
    XLA_GPU_ASSIGN_OR_RETURN(Params params, attention.ParamsOf(buffers));
    if (schedule != nullptr) {
      void* const arguments[] = {&params};
      XLA_GPU_RETURN_IF_ERROR(schedule->Launch(launch, arguments, context.stream));
    }
    return attention.Launch(params, context.stream);
  });
}

}  // namespace
}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal) {
  using namespace paged_attention;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return cuda::MakePlanOfAnyAlignment(kName, [problem, device_ordinal](const auto& unaligned) {
    return MakeCudaPlan(problem, device_ordinal, unaligned);
  });
}

}  // namespace xla_gpu
