// paged_attention, decode of few sequences on Hopper: bf16 or f16 queries over a cache of the same
// type or of fp8. One launch is all of it.
//
// Defines: those of decode_sm90.cu; CLUSTER, the blocks that share a head; LINE_ROWS, 8 or 16;
// MANY_SEQS where there is room for more than 32.
#include "src/ops/paged_attention/cuda/decode_cluster_sm90.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
    __launch_bounds__(xla_gpu::paged_attention::sm90::kDecodeThreads, 1)
        paged_attention_decode_cluster(const __grid_constant__ xla_gpu::paged_attention::Params p,
                                       const __grid_constant__ xla_gpu::TensorMap keys,
                                       const __grid_constant__ xla_gpu::TensorMap values) {
  extern __shared__ __align__(1024) char shared[];
  xla_gpu::paged_attention::sm90::DecodeInCluster(p, keys, values, shared);
}
