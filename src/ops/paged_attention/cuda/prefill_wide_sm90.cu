// paged_attention, prefill items on Hopper of wide heads: bf16 or f16 queries over a cache of the
// same type.
//
// Defines: as of prefill_sm90.cu, HEAD_DIM=512, BOXES=1; CLUSTER=2.
#include "src/ops/paged_attention/cuda/prefill_wide_sm90.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
    __launch_bounds__(xla_gpu::paged_attention::sm90::kThreads, 1) paged_attention_prefill(
        const __grid_constant__ xla_gpu::paged_attention::Params p,
        const __grid_constant__ xla_gpu::paged_attention::sm90::TensorMap keys,
        const __grid_constant__ xla_gpu::paged_attention::sm90::TensorMap values) {
  extern __shared__ __align__(1024) char shared[];
  xla_gpu::paged_attention::sm90::Prefill(p, keys, values, shared);
}
