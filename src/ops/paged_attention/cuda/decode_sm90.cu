// paged_attention, decode on Hopper: bf16 or f16 queries over a cache of the same type or
// of fp8.
//
// Defines: those of attend_sm80.cu that shape the code: QUERY_TYPE, CACHE_TYPE, OUT_TYPE,
// HEAD_DIM (64, 128, 256, 512; of 16 bits 96, 192), SOFT_CAP, PLAIN; LINE_ROWS (8, 16, 32), of a
// tile; BOXES (1: the copy engine loads keys and values by boxes; 0: warps copy rows, and there are
// no maps); PAIRS (1, with BOXES: a head's values lie right behind its keys, and the map `keys` is
// of both); TILE_ROWS and TILE_KEYS are not used.
#include "src/ops/paged_attention/cuda/decode_sm90.cuh"

extern "C" __global__ void __launch_bounds__(xla_gpu::paged_attention::sm90::kDecodeThreads, 1)
    paged_attention_decode(const __grid_constant__ xla_gpu::paged_attention::Params p,
                           const __grid_constant__ xla_gpu::TensorMap keys,
                           const __grid_constant__ xla_gpu::TensorMap values) {
  extern __shared__ __align__(1024) char shared[];
  xla_gpu::paged_attention::sm90::Decode(p, keys, values, shared);
}
