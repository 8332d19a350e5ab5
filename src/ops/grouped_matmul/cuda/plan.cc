// grouped_matmul on CUDA.
#include <memory>
#include <utility>

#include "src/cuda/kernel_specs.h"
#include "src/cuda/tensor_map.cuh"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/grouped_matmul/cuda/config.h"

namespace xla_gpu {
namespace grouped_matmul {
namespace {

constexpr char kName[] = "grouped_matmul";

XLA_GPU_REGISTER_KERNEL_SPECS(kName, CompileCheckSpecs);

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, const Config& config, std::shared_ptr<const cuda::Kernel> kernel,
           std::shared_ptr<const cuda::UnalignedPlan> unaligned)
      : params_(PlanParams(problem)),
        launch_(config.launch),
        kernel_(std::move(kernel)),
        unaligned_(std::move(unaligned)) {
    if (!config.boxes) return;
    lhs_boxes_ = std::make_unique<cuda::TensorMaps>(config.boxes->lhs);
    rhs_boxes_ = std::make_unique<cuda::TensorMaps>(config.boxes->rhs);
  }

  Status Run(const Call& call, const ExecutionContext& context) const override {
    if (params_.rows == 0 || params_.columns == 0) return OkStatus();
    const Buffers buffers = BuffersFromCall(call);
    Params params = params_;
    params.lhs = buffers.lhs;
    params.rhs = buffers.rhs;
    params.group_sizes = buffers.group_sizes;
    params.rhs_scale = buffers.rhs_scale;
    params.out = buffers.out;
    TensorMap lhs{}, rhs{};
    if (lhs_boxes_ != nullptr) {
      const cuda::Place found = cuda::FirstUnaligned({{buffers.lhs, "lhs"}, {buffers.rhs, "rhs"}});
      if (found) return unaligned_->Run(found, call, context);
      XLA_GPU_RETURN_IF_ERROR(lhs_boxes_->Write(buffers.lhs, &lhs));
      XLA_GPU_RETURN_IF_ERROR(rhs_boxes_->Write(buffers.rhs, &rhs));
    }
    void* const arguments[] = {&params, &lhs, &rhs};  // the portable kernel reads the first alone
    return kernel_->Launch(launch_, arguments, context.stream);
  }

 private:
  const Params params_;
  const cuda::LaunchConfig launch_;
  const std::shared_ptr<const cuda::Kernel> kernel_;
  const std::shared_ptr<const cuda::UnalignedPlan> unaligned_;
  std::unique_ptr<cuda::TensorMaps> lhs_boxes_, rhs_boxes_;  // where tensors lie is known in Run
};

}  // namespace
}  // namespace grouped_matmul

StatusOr<std::unique_ptr<Plan>> MakeGroupedMatmulCudaPlan(const Call& call, int device_ordinal) {
  using namespace grouped_matmul;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability("grouped_matmul", *device));
  return cuda::MakePlanOfAnyAlignment(
      kName, [problem, device](const auto& unaligned) -> StatusOr<std::unique_ptr<Plan>> {
        const Config config = ChooseConfig(problem, *device, unaligned != nullptr);
        XLA_GPU_ASSIGN_OR_RETURN(auto kernel, cuda::GetKernel(config.kernel, device->ordinal,
                                                              config.launch.dynamic_shared_bytes));
        return std::unique_ptr<Plan>(
            std::make_unique<CudaPlan>(problem, config, std::move(kernel), unaligned));
      });
}

}  // namespace xla_gpu
