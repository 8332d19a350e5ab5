// paged_attention, decode of tokens that see few keys on Hopper: bf16 or f16 queries over a cache
// of the same type or of fp8. One launch is all of it.
//
// Defines: those of decode_sm90.cu; CLUSTER=1; LINE_ROWS, 8 or 16; BOXES=1.
#include "src/ops/paged_attention/cuda/decode_tokens_sm90.cuh"

extern "C" __global__ void __launch_bounds__(xla_gpu::paged_attention::sm90::kDecodeThreads, 2)
    paged_attention_decode_tokens(const __grid_constant__ xla_gpu::paged_attention::Params p,
                                  const __grid_constant__ xla_gpu::TensorMap keys,
                                  const __grid_constant__ xla_gpu::TensorMap values) {
  extern __shared__ __align__(1024) char shared[];
  xla_gpu::paged_attention::sm90::DecodeTokens(p, keys, values, shared);
}
