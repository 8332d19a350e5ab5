// The online softmax of a 16-row accumulator tile, on the registers of one warp. A thread holds
// elements of two rows, lane / 4 and lane / 4 + 8; the four lanes of a quad share them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_

#include "src/ops/paged_attention/cuda/mma_tile.cuh"

namespace xla_gpu::paged_attention {

// log2 of a weight is logit * factor - max * factor: the running maximum is kept in the units of
// the raw dot product (or of the capped logit), so that scaling costs one FMA. The factor is
// positive: a negative scale is turned into the query's sign, and 0 into a factor that is nearly 0.
struct RowState {
  float max = -__int_as_float(0x7f800000);
  float sum = 0.0f;  // of this thread's elements only, until ReduceSum
  float factor = 1.0f;
};

struct LogitFactor {
  bool negate;   // the query's sign
  float cap_in;  // with a soft cap: from dot product to tanh's argument
  float factor;  // from what the maximum is kept in to log2 units
};

__device__ __forceinline__ LogitFactor MakeLogitFactor(const Params& p, int head) {
  const float scale = LogitScale(p, head);
  LogitFactor result;
  result.negate = scale < 0.0f;
  const float magnitude = scale == 0.0f ? 1e-30f : (scale < 0.0f ? -scale : scale);
  result.cap_in = SOFT_CAP ? magnitude / p.soft_cap : 0.0f;
  result.factor = SOFT_CAP ? 1.0f : magnitude * kLog2E;
  return result;
}

// Hides the keys that the two rows do not see: keys key0 + 8 * tile + column.
template <int kTiles>
__device__ __forceinline__ void Mask(float (&s)[kTiles][4], int key0, const Visible (&rows)[2]) {
  const int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + tile * 8 + i % 2;
      const Visible& row = rows[i / 2];
      if (key < row.begin || key >= row.end) s[tile][i] = -Infinity();
    }
  }
}

// Turns logits into weights, updates the two rows' state, and gives the factors that the sums of
// values so far must be multiplied by.
template <int kTiles>
__device__ __forceinline__ void Weigh(float (&s)[kTiles][4], RowState (&rows)[2],
                                      float (&rescale)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    RowState& row = rows[h];
    float max = row.max;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      max = fmaxf(max, fmaxf(s[tile][2 * h], s[tile][2 * h + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    const float base = max == -Infinity() ? 0.0f : max * row.factor;
    rescale[h] = Exp2(row.max * row.factor - base);
    row.max = max;
    float sum = 0.0f;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      s[tile][2 * h] = Exp2(s[tile][2 * h] * row.factor - base);
      s[tile][2 * h + 1] = Exp2(s[tile][2 * h + 1] * row.factor - base);
      sum += s[tile][2 * h] + s[tile][2 * h + 1];
    }
    row.sum = row.sum * rescale[h] + sum;
  }
}

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// The maximal logit in natural units.
__device__ __forceinline__ float MaxLogit(const RowState& row) {
  return row.max == -Infinity() ? row.max : row.max * row.factor * kLn2;
}

// Applies the soft cap to a tile of dot products.
template <int kTiles>
__device__ __forceinline__ void Cap(const Params& p, float (&s)[kTiles][4],
                                    const float (&cap_in)[2]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[tile][i] = Capped(p, s[tile][i], cap_in[i / 2]);
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_
