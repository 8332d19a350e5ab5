// The online softmax of a 16-row accumulator tile, on the registers of one warp. A thread holds
// elements of two rows, lane / 4 and lane / 4 + 8; the four lanes of a quad share them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_

#include "src/ops/paged_attention/cuda/carry.cuh"
#include "src/ops/paged_attention/cuda/mma_tile.cuh"

namespace xla_gpu::paged_attention {

// log2 of a weight is logit * factor - max * factor, which costs one FMA, in the units of
// tile.cuh's LogitFactor. bf16 rows over fp8 are scaled by a power of two, `unit`, which is part of
// the factor.
struct RowState {
  float max = -__int_as_float(0x7f800000);
  float sum = 0.0f;  // of this thread's elements only, until QuadSum
  float factor = 1.0f;
  float unit = 1.0f;
};

// A factor of a row's logits, which are multiples of `unit`, within f32; NaN stays NaN.
__device__ __forceinline__ float FactorOfRow(float factor, float unit) {
  if constexpr (!kScaledQuery) return factor;
  return fminf(fmaxf(factor * unit, 1e-45f), 3.4028235e38f) + 0.0f * factor;
}

__device__ __forceinline__ RowState MakeRowState(const LogitFactor& logit, float query_scale) {
  RowState state;
  if constexpr (SOFT_CAP) {
    state.factor = logit.factor;
  } else {
    state.unit = query_scale;
    state.factor = FactorOfRow(logit.factor, query_scale);
  }
  return state;
}

// The maximum in the units that rows share between items.
__device__ __forceinline__ float MaxLogit(const RowState& state) {
  return kScaledQuery && state.max != -Infinity() ? state.max * state.unit : state.max;
}

// Past this, max * factor is not subtracted as a product: its rounding would show in the weights.
inline constexpr float kFarLogit = 8192.0f;
__device__ __forceinline__ bool IsNear(float base) { return fabsf(base) < kFarLogit; }

// What sums of weights relative to the maximum `from` are multiplied by when it becomes `to`. The
// products are those of Weigh, never part of an FMA: sums that stay relative to one maximum stay.
__device__ __forceinline__ float Rescale(float from, float to, float factor) {
  const float base = __fmul_rn(to, factor);
  if (IsNear(base)) return Exp2(__fmul_rn(from, factor) - base);
  return Exp2((from - (to == -Infinity() ? 0.0f : to)) * factor);
}

// Hides the keys that the two rows do not see: keys key0 + 8 * tile + column.
template <int kTiles>
__device__ __forceinline__ void Mask(float (&s)[kTiles][4], int key0, const Visible (&visible)[2]) {
  const int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + tile * 8 + i % 2;
      const Visible& seen = visible[i / 2];
      if (key < seen.begin || key >= seen.end) s[tile][i] = -Infinity();
    }
  }
}

// Turns logits into weights, updates the two rows' state, and gives the factors that the sums of
// values so far must be multiplied by.
template <int kTiles>
__device__ __forceinline__ void Weigh(float (&s)[kTiles][4], RowState (&rows)[2],
                                      float (&rescale)[2]) {
  float max[2], base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    max[h] = rows[h].max;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      max[h] = fmaxf(max[h], fmaxf(s[tile][2 * h], s[tile][2 * h + 1]));
    }
    max[h] = fmaxf(max[h], __shfl_xor_sync(kAllLanes, max[h], 1));
    max[h] = fmaxf(max[h], __shfl_xor_sync(kAllLanes, max[h], 2));
    base[h] = __fmul_rn(max[h], rows[h].factor);
    rescale[h] = Exp2(__fmul_rn(rows[h].max, rows[h].factor) - base[h]);
  }
  if (!IsNear(fmaxf(fabsf(base[0]), fabsf(base[1])))) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (IsNear(base[h])) continue;
      rescale[h] = Rescale(rows[h].max, max[h], rows[h].factor);
      const float from = max[h] == -Infinity() ? 0.0f : max[h];
      base[h] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) s[tile][2 * h] -= from, s[tile][2 * h + 1] -= from;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    RowState& state = rows[h];
    state.max = max[h];
    float sum = 0.0f;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      s[tile][2 * h] = Exp2(s[tile][2 * h] * state.factor - base[h]);
      s[tile][2 * h + 1] = Exp2(s[tile][2 * h + 1] * state.factor - base[h]);
      sum += s[tile][2 * h] + s[tile][2 * h + 1];
    }
    state.sum = state.sum * rescale[h] + sum;
  }
}

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Sums over more keys go over the carry: in f32 the errors of others would not hide those of the
// sums.
inline constexpr int kTileCarryKeys = kSplit ? kF32CarryKeys : kCarryKeys;

inline constexpr int kTileCarryFloats = kShared.tile_carry_floats();
inline constexpr int kCarryFloats = kShared.carry_floats();

// Where a thread's sums of a tile's values are worked on once in many keys: loops go over a copy of
// them, in local memory, as unrolled code would take longer to compile than all the rest. Between
// copies the sums stay in registers.
struct ColdSums {
  float x[4 * kOutTiles];

  __device__ __forceinline__ void CopyFrom(const float (&o)[kOutTiles][4]) {
#pragma unroll
    for (int e = 0; e < 4 * kOutTiles; ++e) x[e] = o[e / 4][e % 4];
  }
  __device__ __forceinline__ void CopyTo(float (&o)[kOutTiles][4]) const {
#pragma unroll
    for (int e = 0; e < 4 * kOutTiles; ++e) o[e / 4][e % 4] = x[e];
  }
};

// Moves the sums of 16-row tile `m` to the carry, which holds them relative to the rows' maximum.
__device__ __forceinline__ void PutCarry(const Carry& carry, int m, bool first, RowState (&rows)[2],
                                         float (&o)[kOutTiles][4]) {
  const int begin = m * kTileCarryFloats;
  float rescale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float& max = carry[begin + h];
    rescale[h] = first ? 0.0f : Rescale(max, rows[h].max, rows[h].factor);
    max = rows[h].max;
    PutCarry(carry, begin + 2 + 2 * h, first, rescale[h], rows[h].sum);
    rows[h].sum = 0.0f;
  }
  ColdSums sums;
  sums.CopyFrom(o);
#pragma unroll 8
  for (int e = 0; e < 4 * kOutTiles; ++e) {
    PutCarry(carry, begin + 6 + 2 * e, first, rescale[e / 2 % 2], sums.x[e]);
  }
#pragma unroll
  for (auto& tile : o) {
#pragma unroll
    for (float& x : tile) x = 0.0f;
  }
}

__device__ __forceinline__ void TakeCarry(const Carry& carry, int m, RowState (&rows)[2],
                                          float (&o)[kOutTiles][4]) {
  const int begin = m * kTileCarryFloats;
#pragma unroll
  for (int h = 0; h < 2; ++h) rows[h].sum = TakeCarry(carry, begin + 2 + 2 * h);
  ColdSums sums;
#pragma unroll 8
  for (int e = 0; e < 4 * kOutTiles; ++e) sums.x[e] = TakeCarry(carry, begin + 6 + 2 * e);
  sums.CopyTo(o);
}

// Applies the soft cap to a tile of dot products.
template <int kTiles>
__device__ __forceinline__ void Cap(float (&s)[kTiles][4], const float (&cap_in)[2]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[tile][i] = Capped(s[tile][i], cap_in[i / 2]);
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SOFTMAX_CUH_
