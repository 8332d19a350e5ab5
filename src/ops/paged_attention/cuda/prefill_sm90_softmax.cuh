// The softmax of the Hopper prefill kernel: from a tile's logits to weights, and sums over many
// tiles.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SOFTMAX_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SOFTMAX_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

using Logits = float[kKeys / 8][4];
using Sums = float[kSumTiles][4];
using Products = float[kPanelDims / 8][4];  // a panel of a tile's sums, if kRoundedPrefill
using Weights = unsigned[kValueTerms][kKeys / 16][4];

// A maximum that rises by less leaves the weights' reference where it is: they stay below 2^8.
inline constexpr float kLazyRise = 8.0f;
// So many tiles are added up in registers before they go to a second level, where some sequence may
// have more.
inline constexpr int kLevelTiles = LEVEL_TILES;
inline constexpr bool kTwoLevels = kLevelTiles > 0;

// A row's weights are 2^((logit - max) * factor), where `max` follows the maximum from afar, so
// that sums need be rescaled only now and then. Those of a thread's two rows, lane / 4 and 8 more.
struct RowSoftmax {
  float max = -Infinity();  // until the row sees a key
  float sum = 0.0f;         // of this thread's weights
};

// Never part of an FMA: what is relative to one maximum is so exactly.
__device__ __forceinline__ float BaseOf(float max, float factor) { return __fmul_rn(max, factor); }

// Hides the keys of a tile from key0 on that the two rows do not see, as Mask, but looks only at
// those of one side: few tiles have both.
template <bool kFirst>
__device__ __forceinline__ void MaskSide(Logits& s, int key0, const Visible (&visible)[2]) {
  const int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int bound = (kFirst ? visible[h].begin : visible[h].end) - first;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (kFirst ? i * 8 + j < bound : i * 8 + j >= bound) s[i][2 * h + j] = -Infinity();
      }
    }
  }
}

// The weights of row h from its logits; gives their sum.
__device__ __forceinline__ float Weigh(Logits& s, int h, float factor, float base) {
  float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    s[i][2 * h] = Exp2(s[i][2 * h] * factor - base);
    s[i][2 * h + 1] = Exp2(s[i][2 * h + 1] * factor - base);
    sum0 += s[i][2 * h];
    sum1 += s[i][2 * h + 1];
  }
  return sum0 + sum1;
}

// The same under a soft cap, from what times `in` is 2x in log2, x being a logit over the cap, in a
// tile whose keys the row sees all: four share a reciprocal, so that one that is not finite reaches
// the others. With d = exp(2x) + 1, tanh(x) is 1 - 2 / d; of 2x above `kMost` it rounds to 1.
__device__ __forceinline__ float WeighByExponentials(Logits& s, int h, float in, float factor,
                                                     float base) {
  constexpr float kMost = 30.0f;  // four factors remain below 2^128
  static_assert(kKeys % 16 == 0);
  const float most = factor - base, twice = -2.0f * factor;
  float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / 8; i += 2) {
    float d[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      d[j] = Exp2(MinOrNaN(s[i + j / 2][2 * h + j % 2] * in, kMost)) + 1.0f;
    }
    const float d01 = d[0] * d[1], d23 = d[2] * d[3], both = twice * Reciprocal(d01 * d23);
    const float by01 = both * d23, by23 = both * d01;
    s[i][2 * h] = Exp2(by01 * d[1] + most);
    s[i][2 * h + 1] = Exp2(by01 * d[0] + most);
    s[i + 1][2 * h] = Exp2(by23 * d[3] + most);
    s[i + 1][2 * h + 1] = Exp2(by23 * d[2] + most);
    sum0 += s[i][2 * h];
    sum1 += s[i][2 * h + 1];
    sum0 += s[i + 1][2 * h];
    sum1 += s[i + 1][2 * h + 1];
  }
  return sum0 + sum1;
}

// The same from 4x, where all |x| are below 1/2: tanh(x) is x times a polynomial of x^2, minimax
// with a relative error of 5.5e-7. It takes no reciprocal, and half of the exponentials.
__device__ __forceinline__ float WeighByPolynomial(Logits& s, int h, float factor, float base) {
  const float c0 = factor * 0.249999864f, c1 = factor * -0.00520723718f,
              c2 = factor * 0.000128811490f, c3 = factor * -2.71009681e-6f;
  float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& x = s[i][2 * h + j];
      const float square = x * x;
      x = Exp2(x * (((c3 * square + c2) * square + c1) * square + c0) - base);
    }
    sum0 += s[i][2 * h];
    sum1 += s[i][2 * h + 1];
  }
  return sum0 + sum1;
}

// The weights of both rows from dot products under a soft cap; gives their sums.
__device__ __forceinline__ void WeighCapped(Logits& s, const float (&cap_in)[2],
                                            const float (&factor)[2], const float (&base)[2],
                                            float (&sum)[2]) {
  if constexpr (kTileDims > 128) {  // where both ways would spill
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = WeighByExponentials(s, h, cap_in[h], factor[h], base[h]);
    }
    return;
  }
  unsigned bits = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float to_4x = MinOrNaN(cap_in[h] * (2.0f * kLn2), 3.4028235e38f);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        s[i][2 * h + j] *= to_4x;
        bits |= __float_as_uint(s[i][2 * h + j]);
      }
    }
  }
  constexpr unsigned kLarge = 0x40000000u;  // in what is 2 at least, or not finite
  if (__any_sync(kAllLanes, (bits & kLarge) != 0)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = WeighByExponentials(s, h, 0.5f * kLog2E, factor[h], base[h]);
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = WeighByPolynomial(s, h, factor[h], base[h]);
  }
}

// The maximum of row h, of `least` and its elements of the tile.
__device__ __forceinline__ float Maximum(const Logits& s, int h, float least) {
  float max = least;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) max = fmaxf(max, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
  max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
  return fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
}

// Turns logits into weights. True if a row's maximum rose: then the sums so far must be multiplied
// by `rescale`. All lanes give the same.
__device__ __forceinline__ bool WeighByMaximum(Logits& s, const float (&factor)[2],
                                               RowSoftmax (&rows)[2], float (&rescale)[2]) {
  float base[2];
  bool rose = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float max = Maximum(s, h, -Infinity());
    const bool rises = (max - rows[h].max) * factor[h] > kLazyRise;  // not if both are -infinity
    rose |= rises;
    rescale[h] = rises ? Exp2(BaseOf(rows[h].max, factor[h]) - BaseOf(max, factor[h])) : 1.0f;
    if (rises) rows[h].max = max;
    base[h] = rows[h].max == -Infinity() ? 0.0f : BaseOf(rows[h].max, factor[h]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows[h].sum = rows[h].sum * rescale[h] + Weigh(s, h, factor[h], base[h]);
  }
  return __any_sync(kAllLanes, rose);
}

// The same without looking for a maximum first, for rows that have one: it rises only when weights
// leave the range in which operands and sums are safe. Logits that jump by more than f32 holds give
// a sum that is not finite. kCapped: of dot products (WeighCapped).
template <bool kCapped>
__device__ __forceinline__ bool WeighByLastMaximum(Logits& s, const float (&cap_in)[2],
                                                   const float (&factor)[2], RowSoftmax (&rows)[2],
                                                   float (&rescale)[2]) {
  constexpr float kSafe = kSameType<Operand, F16> ? 0x1p14f : 0x1p40f;
  float sum[2], base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    base[h] = BaseOf(rows[h].max, factor[h]);
    if (!kCapped) sum[h] = Weigh(s, h, factor[h], base[h]);
    rescale[h] = 1.0f;
  }
  if (kCapped) WeighCapped(s, cap_in, factor, base, sum);
  const bool rises = __any_sync(kAllLanes, !(fmaxf(sum[0], sum[1]) < kSafe));
  if (__builtin_expect(rises, 0)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = Maximum(s, h, 1.0f);
      const int log2 = static_cast<int>(__float_as_uint(most) >> 23) - 127;
      if (log2 > 0 && log2 < 128) {
        const float max = rows[h].max;
        constexpr int kMostRise = 120;  // whose inverse is a normal number, rounded or not
        rows[h].max = max + static_cast<float>(min(log2, kMostRise)) / factor[h];
        rescale[h] = Exp2(BaseOf(max, factor[h]) - BaseOf(rows[h].max, factor[h]));
      }
      rows[h].sum *= rescale[h];
      sum[h] *= rescale[h];
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
        s[i][2 * h] *= rescale[h];
        s[i][2 * h + 1] *= rescale[h];
      }
    }
  }
  rows[0].sum += sum[0];
  rows[1].sum += sum[1];
  return rises;
}

__device__ __forceinline__ void PackWeights(Weights& weights, const Logits& s) {
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned terms[kValueTerms];
      SplitPair<Operand>(s[i][2 * h], s[i][2 * h + 1], terms);
#pragma unroll
      for (int term = 0; term < kValueTerms; ++term) {
        weights[term][i / 2][i % 2 * 2 + h] = terms[term];
      }
    }
  }
}

// The second level of the sums: in this thread's memory, not its registers.
struct Level {
  float o[kSumTiles][4];
  float max[2];
  float sum[2];
};

// Moves the registers' sums to the level. `fresh`: there is nothing in it yet.
__device__ __forceinline__ void ToLevel(Level* level, bool fresh, const float (&factor)[2], Sums& o,
                                        RowSoftmax (&rows)[2]) {
  float keep[2] = {0.0f, 0.0f};
  if (fresh) {
#pragma unroll
    for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) level->o[i][j] = 0.0f;
    }
    level->sum[0] = level->sum[1] = 0.0f;
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float before = level->max[h], now = rows[h].max;
      keep[h] = before == now ? 1.0f : Exp2(BaseOf(before, factor[h]) - BaseOf(now, factor[h]));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    level->sum[h] = level->sum[h] * keep[h] + rows[h].sum;
    level->max[h] = rows[h].max;
    rows[h].sum = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      level->o[i][j] = level->o[i][j] * keep[j / 2] + o[i][j];
      o[i][j] = 0.0f;
    }
  }
}

__device__ __forceinline__ void FromLevel(Level* level, const float (&factor)[2], Sums& o,
                                          RowSoftmax (&rows)[2]) {
  ToLevel(level, false, factor, o, rows);
#pragma unroll
  for (int h = 0; h < 2; ++h) rows[h].sum = level->sum[h];
#pragma unroll
  for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[i][j] = level->o[i][j];
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SOFTMAX_CUH_
