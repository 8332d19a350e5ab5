// paged_attention, prefill items on Hopper: bf16 or f16 queries over a cache of the same type, or
// of fp8; or f32 ones over a copy of a cache of f32.
//
// Defines: those of attend_sm80.cu that shape a tile: QUERY_TYPE, CACHE_TYPE, OUT_TYPE, HEAD_DIM
// (a multiple of 8 up to 256, or 512; of fp8 and f32 64, 128), SOFT_CAP, PLAIN,
// TILE_ROWS=PrefillRows(HEAD_DIM), or kManyPrefillRows; TILE_KEYS=PrefillKeys(HEAD_DIM, ...); BOXES
// (1: the copy engine loads keys and values by boxes; not of fp8); CLUSTER (1, or with BOXES 2:
// blocks that share keys and values); BESIDE_DECODE (1: the launch in front is decode); COPIED (1:
// the launch in front has copied the keys and values of a cache of fp8 in the query's type, which
// is CACHE_TYPE here; or of f32 as terms, when it is BF16); LEVEL_TILES (tiles of keys
// whose sums stay in registers before they go to a second level; 0: all that there may be).
#include "src/ops/paged_attention/cuda/prefill_sm90.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
    __launch_bounds__(xla_gpu::paged_attention::sm90::kThreads, 1)
        paged_attention_prefill(const __grid_constant__ xla_gpu::paged_attention::Params p,
                                const __grid_constant__ xla_gpu::TensorMap keys,
                                const __grid_constant__ xla_gpu::TensorMap values) {
  extern __shared__ __align__(1024) char shared[];
  xla_gpu::paged_attention::sm90::Prefill(p, keys, values, shared);
}
