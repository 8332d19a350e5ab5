// paged_attention on CUDA: Problem -> Config -> kernels, compiled and loaded here; Run only
// launches them, so that it may be captured into a graph and replayed with other lengths.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

XLA_GPU_REGISTER_KERNEL_SPECS("paged_attention", CompileCheckSpecs);

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, const cuda::LaunchConfig& schedule_launch,
           std::shared_ptr<const cuda::Kernel> schedule, Attention attention)
      : problem_(problem),
        schedule_launch_(schedule_launch),
        schedule_(std::move(schedule)),
        attention_(std::move(attention)) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    if (problem_.tokens == 0) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(Params params, attention_.ParamsOf(BuffersFromCall(problem_, call)));
    void* const arguments[] = {&params};
    XLA_GPU_RETURN_IF_ERROR(schedule_->Launch(schedule_launch_, arguments, context.stream));
    return attention_.Launch(params, context.stream);
  }

 private:
  const Problem problem_;
  const cuda::LaunchConfig schedule_launch_;
  const std::shared_ptr<const cuda::Kernel> schedule_;
  const Attention attention_;
};

}  // namespace
}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal) {
  using namespace paged_attention;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const Config config, ChooseConfig(problem, *device));
  const KernelLaunch schedule = MakeLaunches(problem, config).schedule;
  XLA_GPU_ASSIGN_OR_RETURN(auto kernel, cuda::GetKernel(schedule.spec, device_ordinal, 0));
  XLA_GPU_ASSIGN_OR_RETURN(Attention attention, Attention::Load(problem, config, device_ordinal));
  return std::unique_ptr<Plan>(std::make_unique<CudaPlan>(problem, schedule.config,
                                                          std::move(kernel), std::move(attention)));
}

}  // namespace xla_gpu
