// How the warps of the Hopper prefill kernel that compute make terms of their rows of f32 queries.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TERMS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TERMS_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Where byte `at` of a row lies in the tile, all its terms taken as one row.
__device__ __forceinline__ unsigned ByteInTile(int row, int at) {
  return PlaceInTile(row, at / 16) + at % 16;
}

// Makes terms of this warp's 16 rows, in place: a row of f32 lies where its terms will. `scales`
// gets what undoes each row's scaling, and that of the keys.
template <int kDims>
__device__ __forceinline__ void SplitQueries(const LogitFactor& logit, unsigned tile, int warp_row,
                                             float* scales) {
  using Dims = LaneDims<kDims>;
  constexpr float kLeast = 0x1p-100f;  // of which the scale is a normal number
  const int lane = threadIdx.x % 32;
  const float to_log2 = SOFT_CAP ? logit.cap_in * logit.factor : logit.factor;
#pragma unroll 4
  for (int row = warp_row; row < warp_row + 16; ++row) {
    Dims x = LoadShared<Dims>(tile + ByteInTile(row, lane * static_cast<int>(sizeof(Dims))));
    float largest = 0.0f;
#pragma unroll
    for (const float element : x.x) largest = fmaxf(largest, fabsf(element));
    largest = __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(largest)));
    const RowScale scale = ScaleOfRow(largest);
    const float down = (logit.negate ? -scale.down : scale.down) * 0x1p14f;
    const float up = scale.up * (0x1p-14f / kKeyScale);
#pragma unroll
    for (float& element : x.x) element *= down;
    const bool valid =
        (largest >= kLeast || largest == 0.0f) && HoldsTerms(up * to_log2, SumOfMagnitudes(x));
    if (lane == 0) scales[row] = up;
    __syncwarp();  // the row is read
    SplitRow<DotOperand, kDotTerms>(x, valid, [&](int term, const auto& pairs) {
      const int at = term * (kDims * 2) + lane * static_cast<int>(sizeof(pairs));
      StoreShared(tile + ByteInTile(row, at), pairs);
    });
  }
  FenceForMatrixReads();
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TERMS_CUH_
