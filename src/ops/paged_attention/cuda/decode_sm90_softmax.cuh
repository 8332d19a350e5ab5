// The softmax of the Hopper decode kernels: of a warp, or a warpgroup, over its share of the keys,
// in registers, and the second level that its sums go to.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SOFTMAX_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SOFTMAX_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr float kLeastRise = 8.0f;  // of a maximum, in log2: below it weights may grow

// What is left of a warp's lanes / 4, in each lane.
template <typename Combine>
__device__ __forceinline__ float ColumnReduce(float x, Combine combine) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// The warps whose weights are relative to one maximum: this one alone. Wide tiles have others.
struct OneWarp {
  __device__ __forceinline__ bool Any(bool x) const { return __any_sync(kAllLanes, x); }
  template <int kTiles>
  __device__ __forceinline__ void Max(float (&)[kTiles][2]) const {}
};

// A running softmax of kTiles x 8 rows. This thread has rows tile * 8 + lane % 4 * 2 + h, for its
// keys lane / 4 and lane / 4 + 8 of each step, and sums of values o[block][tile][h (+ 2)]: of head
// dimensions lane / 4 (+ 8) of the block's 16.
template <int kTiles, int kBlocks>
struct Softmax {
  // From logits to log2 units: of all rows, or of each.
  static constexpr bool kOfRows = kScaledQuery && !SOFT_CAP;
  float factors[kOfRows ? kTiles : 1][kOfRows ? 2 : 1];
  float o[kBlocks][kTiles][4] = {};
  float max[kTiles][2];       // that the weights are relative to: it follows the maximum from afar
  float sum[kTiles][2] = {};  // of this thread's weights
  bool far = false;           // some row's base is too large to be subtracted as a product

  // `unit`: what the rows' logits are multiples of, a power of two.
  __device__ __forceinline__ Softmax(float factor, const float (&unit)[kTiles][2]) {
    factors[0][0] = factor;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[i][h] = -Infinity();
        if constexpr (kOfRows) factors[i][h] = FactorOfRow(factor, unit[i][h]);
      }
    }
  }
  __device__ __forceinline__ float Factor(int i, int h) const {
    return factors[kOfRows ? i : 0][kOfRows ? h : 0];
  }

  // What is subtracted from a row's logits, in log2: 0 while there are none.
  __device__ __forceinline__ float Base(int i, int h) const {
    return max[i][h] == -Infinity() ? 0.0f : __fmul_rn(max[i][h], Factor(i, h));
  }

  // Multiplies what is relative to row (i, h)'s maximum.
  __device__ __forceinline__ void Scale(int i, int h, float by) {
    sum[i][h] *= by;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      o[block][i][h] *= by;
      o[block][i][h + 2] *= by;
    }
  }

  // Raises the maxima of rows that have logits well above them. All warps.
  template <typename Warps>
  __device__ __forceinline__ void Raise(const float (&s)[kTiles][4], const Warps& warps) {
    float most[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[i][h] =
            ColumnReduce(fmaxf(s[i][h], s[i][h + 2]), [](float a, float b) { return fmaxf(a, b); });
      }
    }
    warps.Max(most);
    far = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if ((most[i][h] - max[i][h]) * Factor(i, h) > kLeastRise) {  // not if both are -infinity
          Scale(i, h, Rescale(max[i][h], most[i][h], Factor(i, h)));
          max[i][h] = most[i][h];
        }
        far |= !IsNear(Base(i, h));
      }
    }
    far = __any_sync(kAllLanes, far);
  }

  // Turns the logits of a step into weights. All warps.
  template <typename Warps>
  __device__ __forceinline__ void Weigh(float (&s)[kTiles][4], const Warps& warps) {
    bool rises = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rises |= (fmaxf(s[i][h], s[i][h + 2]) - max[i][h]) * Factor(i, h) > kLeastRise;
      }
    }
    if (warps.Any(rises)) Raise(s, warps);
    if (far) {
      Exponentiate<true>(s);
    } else {
      Exponentiate<false>(s);
    }
  }

  template <bool kFar>
  __device__ __forceinline__ void Exponentiate(float (&s)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float base = Base(i, h);
        if (kFar && !IsNear(base)) {
          s[i][h] -= max[i][h], s[i][h + 2] -= max[i][h];
          base = 0.0f;
        }
        s[i][h] = Exp2(s[i][h] * Factor(i, h) - base);
        s[i][h + 2] = Exp2(s[i][h + 2] * Factor(i, h) - base);
        sum[i][h] += s[i][h] + s[i][h + 2];
      }
    }
  }
};

// The second level of the sums: in this thread's memory, not its registers.
template <int kTiles, int kBlocks>
struct SoftmaxLevel {
  float o[kBlocks][kTiles][4];
  float max[kTiles][2];
  float sum[kTiles][2];

  // Moves the registers' sums here.
  __device__ __forceinline__ void Take(Softmax<kTiles, kBlocks>& from, bool fresh) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float keep = fresh ? 0.0f : Rescale(max[i][h], from.max[i][h], from.Factor(i, h));
        sum[i][h] = (fresh ? 0.0f : sum[i][h] * keep) + from.sum[i][h];
        max[i][h] = from.max[i][h];
        from.sum[i][h] = 0.0f;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int j = h; j < 4; j += 2) {
            o[block][i][j] = (fresh ? 0.0f : o[block][i][j] * keep) + from.o[block][i][j];
            from.o[block][i][j] = 0.0f;
          }
        }
      }
    }
  }
  // And brings all back.
  __device__ __forceinline__ void Give(Softmax<kTiles, kBlocks>& to) {
    Take(to, false);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      to.sum[i][0] = sum[i][0], to.sum[i][1] = sum[i][1];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) to.o[block][i][j] = o[block][i][j];
      }
    }
  }
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SOFTMAX_CUH_
