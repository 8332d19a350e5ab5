// f32 numbers as sums of 16-bit ones, their terms, which Hopper's tensor cores multiply twice as
// fast as tf32, and read in any order. Each term is what those before have left, rounded.
//
// Values and weights are three of bf16, which hold all 24 bits from 2^-110 on; of the nine products
// the six down to 2^-16 of the first count. Queries and keys are two of f16, which hold 22 bits as
// the two of tf32 do in split.cuh; three products count. f16 has five bits for the exponent: a row
// of queries is scaled to below 2^15, keys by 2^6. What is then so small that its terms have no 22
// bits is off by up to 2^-25, so that a logit is by that times the sums of |query| or of |key|.
// Where one of the two could be more than 2^-24 in log2 units, or a number is out of range, the
// row, or the key, becomes NaN: attend computes such rows from the cache itself.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TERMS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TERMS_CUH_

#include "src/cuda/numeric.cuh"
#include "src/cuda/ptx.cuh"

namespace xla_gpu::paged_attention {

inline constexpr float kKeyScale = 0x1p6f;
// So many keys' |key| may add up to, scaled, in a row: then 2^-25 times that is 2^-7.
inline constexpr unsigned kMostKeySum = 1u << 18;

// Whether a row of queries may have terms. `factor`: from its dot products with scaled keys to log2
// units; `sum`: of |query|, scaled.
__device__ __forceinline__ bool HoldsTerms(float factor, unsigned sum) {
  return factor <= 0x1p-17f && factor * static_cast<float>(sum) <= 2.0f;
}

// Makes terms of pairs of T, the largest first, of two numbers. `kFinite`: also of f32's largest,
// which bf16 rounds to infinity, they are finite; of what is not finite all but the first are not.
template <typename T, bool kFinite = false, int kCount>
__device__ __forceinline__ void SplitPair(float x, float y, unsigned (&terms)[kCount]) {
  const auto first = [](float number) {
    constexpr float kMost = 0x1.fep127f;  // of bf16
    return kFinite ? fminf(fmaxf(number, -kMost), kMost) : number;
  };
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    terms[i] = i == 0 ? Pack2<T>(first(x), first(y)) : Pack2<T>(x, y);
    x -= ToFloat(T{static_cast<unsigned short>(terms[i])});
    y -= ToFloat(T{static_cast<unsigned short>(terms[i] >> 16)});
  }
}

// Calls product(i, j) for term i of one operand and term j of the other, the smallest first.
template <int kCount, typename Product>
__device__ __forceinline__ void ForProducts(Product product) {
#pragma unroll
  for (int sum = kCount - 1; sum >= 0; --sum) {
#pragma unroll
    for (int i = 0; i <= sum; ++i) product(i, sum - i);
  }
}

// What a lane holds of a row that a warp splits.
template <int kHeadDim>
using LaneDims = Vector<float, kHeadDim / 32>;

// Splits a row of f32, a lane its share: store(term, pairs) gets those of each term. NaN if the row
// is not to be `valid`.
template <typename T, int kCount, int kDims, typename Store>
__device__ __forceinline__ void SplitRow(const Vector<float, kDims>& x, bool valid, Store store) {
  unsigned terms[kDims / 2][kCount];
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) {
    SplitPair<T, kSameType<T, BF16>>(x.x[2 * i], x.x[2 * i + 1], terms[i]);
  }
#pragma unroll
  for (int term = 0; term < kCount; ++term) {
    Vector<unsigned, kDims / 2> pairs;
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i) pairs.x[i] = valid ? terms[i][term] : 0x7fff7fffu;
    store(term, pairs);
  }
}

// The sum of the warp's |x|, rounded down in each lane; large where one is.
template <int kDims>
__device__ __forceinline__ unsigned SumOfMagnitudes(const Vector<float, kDims>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDims; ++i) sum += fabsf(x.x[i]);
  return __reduce_add_sync(kAllLanes, static_cast<unsigned>(fminf(sum, 0x1p24f)));
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TERMS_CUH_
