// The kernels of one problem, loaded, and their launches.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LAUNCH_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LAUNCH_H_

#include <memory>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/kernel.h"
#include "src/cuda/tensor_map.h"
#include "src/ops/paged_attention/cuda/config.h"

namespace xla_gpu::paged_attention {

// The kernels' parameter of a call. An error if the workspace is not aligned to 16 bytes.
StatusOr<Params> MakeParams(const PlannedParams& planned, const Buffers& buffers);

// What a call launches after its schedule. Launch only enqueues.
class Attention {
 public:
  static StatusOr<Attention> Load(const Problem& problem, const Config& config, int device_ordinal);
  StatusOr<Params> ParamsOf(const Buffers& buffers) const { return MakeParams(params_, buffers); }
  Status Launch(const Params& params, void* stream) const;

 private:
  struct Step {
    std::shared_ptr<const cuda::Kernel> kernel;
    cuda::LaunchConfig launch;
    bool pairs;
  };
  PlannedParams params_;
  std::vector<Step> steps_;
  std::unique_ptr<cuda::TensorMaps> boxes_;  // where a launch takes them
  std::unique_ptr<cuda::TensorMaps> pairs_;  // the same
};

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LAUNCH_H_
