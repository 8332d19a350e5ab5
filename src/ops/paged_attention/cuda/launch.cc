#include "src/ops/paged_attention/cuda/launch.h"

#include <utility>

#include "src/core/log.h"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"

namespace xla_gpu::paged_attention {

StatusOr<Attention> Attention::Load(const Problem& problem, const Config& config,
                                    int device_ordinal) {
  if (LogsInfo()) LogInfo(Describe(problem, config));
  Attention attention;
  attention.params_ = PlanParams(problem, config);
  for (const auto& [spec, launch] : MakeLaunches(problem, config).attend) {
    XLA_GPU_ASSIGN_OR_RETURN(auto kernel,
                             cuda::GetKernel(spec, device_ordinal, launch.dynamic_shared_bytes));
    attention.steps_.push_back({std::move(kernel), launch});
  }
  if (config.boxes) attention.boxes_ = std::make_unique<cuda::TensorMaps>(MakeBoxes(problem));
  return attention;
}

Status Attention::Launch(const Params& params, void* stream) const {
  TensorMap keys{}, values{};
  if (boxes_ != nullptr) {  // where the cache lies is known only now
    XLA_GPU_RETURN_IF_ERROR(boxes_->Write(params.k_cache, &keys));
    XLA_GPU_RETURN_IF_ERROR(boxes_->Write(params.v_cache, &values));
  }
  // A kernel reads as many of them as it has parameters.
  void* const arguments[] = {const_cast<Params*>(&params), &keys, &values};
  for (const Step& step : steps_) {
    XLA_GPU_RETURN_IF_ERROR(step.kernel->Launch(step.launch, arguments, stream));
  }
  return OkStatus();
}

}  // namespace xla_gpu::paged_attention
