#include "src/ops/paged_attention/cuda/launch.h"

#include <utility>

#include "src/core/log.h"
#include "src/cuda/tensor_map.cuh"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/paged_attention/cuda/config_parts.h"

namespace xla_gpu::paged_attention {

StatusOr<Params> MakeParams(const PlannedParams& planned, const Buffers& buffers) {
  XLA_GPU_RETURN_IF_ERROR(
      cuda::CheckAligned("paged_attention", {{buffers.workspace, "workspace"}}));
  const WorkspaceLayout& layout = planned.workspace;
  char* workspace = static_cast<char*>(buffers.workspace);
  Params p = planned.params;
  p.query = buffers.query;
  p.k_cache = static_cast<const char*>(buffers.k_cache) + planned.k_offset;
  p.v_cache = static_cast<const char*>(buffers.v_cache) + planned.v_offset;
  p.context_lens = buffers.context_lens;
  p.block_tables = buffers.block_tables;
  p.query_start_loc = buffers.query_start_loc;
  p.num_seqs = buffers.num_seqs;
  p.sinks = buffers.sinks;
  p.k_scale = buffers.k_scale;
  p.v_scale = buffers.v_scale;
  p.k_token_scales = buffers.k_token_scales;
  p.v_token_scales = buffers.v_token_scales;
  p.out = buffers.out;
  p.lse = buffers.lse;
  p.header = reinterpret_cast<WorkHeader*>(workspace + layout.header);
  p.sequences = reinterpret_cast<SequenceInfo*>(workspace + layout.sequences);
  p.owner_end = reinterpret_cast<int*>(workspace + layout.owner_end);
  p.state = reinterpret_cast<int*>(workspace + layout.state);
  p.items = reinterpret_cast<WorkItem*>(workspace + layout.items);
  p.redo = reinterpret_cast<unsigned*>(workspace + layout.redo);
  p.merges = reinterpret_cast<int*>(workspace + layout.merges);
  p.partial_max = reinterpret_cast<float*>(workspace + layout.partial_max);
  p.partial_sum = reinterpret_cast<float*>(workspace + layout.partial_sum);
  p.partial_out = reinterpret_cast<float*>(workspace + layout.partial_out);
  if (layout.carry < layout.total_bytes)
    p.carry = reinterpret_cast<float*>(workspace + layout.carry);
  p.arrivals = reinterpret_cast<unsigned*>(workspace + layout.arrivals);
  p.copied_keys = workspace + layout.copied_keys;
  p.copied_values = workspace + layout.copied_values;
  return p;
}

StatusOr<Attention> Attention::Load(const Problem& problem, const Config& config,
                                    int device_ordinal) {
  if (LogsInfo()) LogInfo(Describe(problem, config));
  Attention attention;
  attention.params_ = PlanParams(problem, config);
  bool pairs = false;
  for (const KernelLaunch& launch : MakeLaunches(problem, config).attend) {
    XLA_GPU_ASSIGN_OR_RETURN(auto kernel, cuda::GetKernel(launch.spec, device_ordinal,
                                                          launch.config.dynamic_shared_bytes));
    attention.steps_.push_back({std::move(kernel), launch.config, launch.pairs});
    pairs |= launch.pairs;
  }
  if (config.copy_tokens > 0) {
    attention.boxes_ =
        std::make_unique<cuda::TensorMaps>(MakeBoxes(CopyOf(problem, config.copy_tokens)));
  } else if (config.boxes && (config.prefill_launch || !pairs)) {
    attention.boxes_ = std::make_unique<cuda::TensorMaps>(MakeBoxes(problem));
  }
  if (pairs) attention.pairs_ = std::make_unique<cuda::TensorMaps>(MakeBoxes(problem, true));
  return attention;
}

Status Attention::Launch(const Params& params, void* stream) const {
  TensorMap keys{}, values{}, pairs{};
  if (boxes_ != nullptr) {  // where the cache lies is known only now
    const bool copied = params.copy_capacity > 0;
    XLA_GPU_RETURN_IF_ERROR(boxes_->Write(copied ? params.copied_keys : params.k_cache, &keys));
    XLA_GPU_RETURN_IF_ERROR(boxes_->Write(copied ? params.copied_values : params.v_cache, &values));
  }
  if (pairs_ != nullptr) XLA_GPU_RETURN_IF_ERROR(pairs_->Write(params.k_cache, &pairs));
  for (const Step& step : steps_) {
    // A kernel reads as many of them as it has parameters.
    void* const arguments[] = {const_cast<Params*>(&params), step.pairs ? &pairs : &keys, &values};
    XLA_GPU_RETURN_IF_ERROR(step.kernel->Launch(step.launch, arguments, stream));
  }
  return OkStatus();
}

}  // namespace xla_gpu::paged_attention
