// Scales of tokens in the tensor-core kernels. A key's lies in the 16 bytes behind its row in
// shared memory, a value's behind its own. Logits are multiplied by those of keys, weights by those
// of values.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TOKEN_SCALES_SM80_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TOKEN_SCALES_SM80_CUH_

#include "src/ops/paged_attention/cuda/mma_tile.cuh"

namespace xla_gpu::paged_attention {

// Starts copying the scales of one key and its value, `to_value` bytes further, to `shared`; of an
// index below 0 zeros.
__device__ __forceinline__ void CopyTokenScales(const Params& p, long long index, unsigned shared,
                                                int to_value) {
  const auto copy = [&](const float* scales, unsigned to) {
    if (scales == nullptr) return StoreShared(to, 1.0f);
    CopyAsync<4>(to, scales + (index < 0 ? 0 : index), index >= 0);
  };
  copy(p.k_token_scales, shared);
  copy(p.v_token_scales, shared + to_value);
}

// Calls scale(tile, column, of the key) for the keys of this thread's elements of a tile of logits;
// `shared`: the first key's.
template <int kStride, int kTiles, typename Scale>
__device__ __forceinline__ void ForTokenScales(unsigned shared, Scale scale) {
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const unsigned key = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    scale(i / 2, i % 2, InfiniteToNaN(LoadShared<float>(shared + key * kStride)));
  }
}

template <int kStride, int kTiles>
__device__ __forceinline__ void ScaleLogits(float (&s)[kTiles][4], unsigned shared) {
  if constexpr (!kTokenScales) return;
  ForTokenScales<kStride, kTiles>(shared, [&](int tile, int column, float scale) {
    s[tile][column] *= scale;
    s[tile][column + 2] *= scale;
  });
}

// Weights of keys that a row does not see stay 0, whatever their scale.
template <int kStride, int kTiles>
__device__ __forceinline__ void ScaleWeights(float (&s)[kTiles][4], unsigned shared, int key0,
                                             const Visible (&visible)[2]) {
  if constexpr (!kTokenScales) return;
  ForTokenScales<kStride, kTiles>(shared, [&](int tile, int column, float scale) {
    const int key = key0 + tile * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + column;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (key >= visible[h].begin && key < visible[h].end) s[tile][2 * h + column] *= scale;
    }
  });
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TOKEN_SCALES_SM80_CUH_
