// paged_attention on CUDA: Problem -> Config -> kernels, compiled and loaded here; a run only
// launches them, so that it may be captured into a graph and replayed with other lengths.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/cuda/tuning.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(const Problem& problem, const Config& config,
                                             int device_ordinal) {
  const auto [spec, launch] = MakeLaunches(problem, config).schedule;
  std::shared_ptr<const cuda::Kernel> schedule;
  if (config.decode_cluster == 0) {  // else it is not needed
    XLA_GPU_ASSIGN_OR_RETURN(schedule, cuda::GetKernel(spec, device_ordinal, 0));
  }
  XLA_GPU_ASSIGN_OR_RETURN(auto attention, Attention::Load(problem, config, device_ordinal));
  return MakePlan([problem, schedule, launch = launch, attention = std::move(attention)](
                      const Call& call, const ExecutionContext& context) -> Status {
    if (problem.tokens == 0) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(Params params, attention.ParamsOf(BuffersFromCall(problem, call)));
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
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const Config config, TunedConfig(problem, *device));
  return MakeCudaPlan(problem, config, device_ordinal);
}

}  // namespace xla_gpu
