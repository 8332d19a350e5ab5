// The softmax of the Hopper decode kernel: of a warp, over its share of the keys, in registers, and
// the second level that its sums go to.
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

// A warp's running softmax of kTiles x 8 rows. This thread has rows tile * 8 + lane % 4 * 2 + h,
// for its keys lane / 4 and lane / 4 + 8 of each step and, once summed over keys, for head
// dimensions block * 16 + lane / 4 (+ 8): o[block][tile][h (+ 2)].
template <int kTiles>
struct Softmax {
  float factor;
  float o[kDimBlocks][kTiles][4] = {};
  float max[kTiles][2];        // that the weights are relative to: it follows the maximum from afar
  float sum[kTiles][2] = {};   // of this thread's weights
  float base[kTiles][2] = {};  // max * factor
  bool far = false;            // some row's base is too large to be subtracted as a product

  __device__ __forceinline__ explicit Softmax(float factor) : factor(factor) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) max[i][0] = max[i][1] = -Infinity();
  }

  // Multiplies what is relative to row (i, h)'s maximum.
  __device__ __forceinline__ void Scale(int i, int h, float by) {
    sum[i][h] *= by;
#pragma unroll
    for (int block = 0; block < kDimBlocks; ++block) {
      o[block][i][h] *= by;
      o[block][i][h + 2] *= by;
    }
  }

  // Raises the maxima of rows that have logits well above them. All lanes.
  __device__ __forceinline__ void Raise(const float (&s)[kTiles][4]) {
    far = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float most =
            ColumnReduce(fmaxf(s[i][h], s[i][h + 2]), [](float a, float b) { return fmaxf(a, b); });
        if ((most - max[i][h]) * factor > kLeastRise) {  // not if both are -infinity
          Scale(i, h, Rescale(max[i][h], most, factor));
          max[i][h] = most;
          base[i][h] = __fmul_rn(most, factor);
        }
        far |= !IsNear(base[i][h]);
      }
    }
    far = __any_sync(kAllLanes, far);
  }

  // Turns the logits of a step into weights.
  __device__ __forceinline__ void Weigh(float (&s)[kTiles][4]) {
    bool rises = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rises |= (fmaxf(s[i][h], s[i][h + 2]) - max[i][h]) * factor > kLeastRise;
      }
    }
    if (__any_sync(kAllLanes, rises)) Raise(s);
    float from[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) from[i][0] = base[i][0], from[i][1] = base[i][1];
    if (far) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (IsNear(base[i][h])) continue;
          s[i][h] -= max[i][h], s[i][h + 2] -= max[i][h];
          from[i][h] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        s[i][h] = Exp2(s[i][h] * factor - from[i][h]);
        s[i][h + 2] = Exp2(s[i][h + 2] * factor - from[i][h]);
        sum[i][h] += s[i][h] + s[i][h + 2];
      }
    }
  }
};

// The second level of the sums: in this thread's memory, not its registers.
template <int kTiles>
struct SoftmaxLevel {
  float o[kDimBlocks][kTiles][4];
  float max[kTiles][2];
  float sum[kTiles][2];

  // Moves the registers' sums here.
  __device__ __forceinline__ void Take(Softmax<kTiles>& from, bool fresh) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float keep = fresh ? 0.0f : Rescale(max[i][h], from.max[i][h], from.factor);
        sum[i][h] = (fresh ? 0.0f : sum[i][h] * keep) + from.sum[i][h];
        max[i][h] = from.max[i][h];
        from.sum[i][h] = 0.0f;
#pragma unroll
        for (int block = 0; block < kDimBlocks; ++block) {
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
  __device__ __forceinline__ void Give(Softmax<kTiles>& to) {
    Take(to, false);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      to.sum[i][0] = sum[i][0], to.sum[i][1] = sum[i][1];
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) to.o[block][i][j] = o[block][i][j];
      }
    }
  }
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SOFTMAX_CUH_
