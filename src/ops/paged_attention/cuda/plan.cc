// paged_attention on CUDA: Problem -> Config -> two kernels, compiled and loaded here; Run only
// launches them, so that it may be captured into a graph and replayed with other lengths.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

XLA_GPU_REGISTER_KERNEL_SPECS("paged_attention", CompileCheckSpecs);

struct Step {
  std::shared_ptr<const cuda::Kernel> kernel;
  cuda::LaunchConfig launch;
};

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, const Config& config, std::vector<Step> steps)
      : problem_(problem), config_(config), steps_(std::move(steps)) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    if (problem_.tokens == 0) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(Params params,
                             MakeParams(problem_, config_, BuffersFromCall(problem_, call)));
    void* const arguments[] = {&params};
    for (const Step& step : steps_) {
      XLA_GPU_RETURN_IF_ERROR(step.kernel->Launch(step.launch, arguments, context.stream));
    }
    return OkStatus();
  }

 private:
  const Problem problem_;
  const Config config_;
  const std::vector<Step> steps_;
};

}  // namespace
}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal) {
  using namespace paged_attention;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const Config config, ChooseConfig(problem, *device));
  const Launches launches = MakeLaunches(problem, config);
  std::vector<Step> steps;
  for (const auto& [spec, launch] : {std::pair{&launches.schedule, &launches.schedule_launch},
                                     std::pair{&launches.attend, &launches.attend_launch}}) {
    XLA_GPU_ASSIGN_OR_RETURN(auto kernel,
                             cuda::GetKernel(*spec, device_ordinal, launch->dynamic_shared_bytes));
    steps.push_back({std::move(kernel), *launch});
  }
  return std::unique_ptr<Plan>(std::make_unique<CudaPlan>(problem, config, std::move(steps)));
}

}  // namespace xla_gpu
