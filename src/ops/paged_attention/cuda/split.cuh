// f32 as the sum of two tf32, which tensor cores multiply: high * high, and, for what tf32 has not
// the bits of, high * low and low * high. low * low is below the last bit of f32.
//
// Where an operand is infinite or so large that rounding makes it infinite, high * low gives NaN,
// or what may have been one: see RepairLogits and the second run of attend_sm80.cu.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLIT_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLIT_CUH_

#include "src/cuda/ptx.cuh"

namespace xla_gpu::paged_attention {

inline constexpr unsigned kTf32Bits = 0xffffe000u;

// Of low the tensor cores take the bits that tf32 has. NaN is NaN in at least one of both.
__device__ __forceinline__ unsigned LowOf(unsigned word, unsigned high) {
  return __float_as_uint(__uint_as_float(word) - __uint_as_float(high));
}

// A operands are rounded, so that low has either sign: what low * low would add has no bias.
__device__ __forceinline__ void Split(unsigned (&words)[4], unsigned (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned high = (words[i] + 0x1000u) & kTf32Bits;
    low[i] = LowOf(words[i], high);
    words[i] = high;
  }
}

// products += a * b, kSteps of eight each, the smallest first. B operands, of which there are many,
// are truncated.
template <int kSteps, int kWords>
__device__ __forceinline__ void MmaSplit(float (&products)[4], const unsigned (&a)[kSteps][4],
                                         const unsigned (&a_low)[kSteps][4],
                                         const unsigned (&b)[kWords]) {
  unsigned high[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) high[i] = b[i] & kTf32Bits;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) MmaTf32(products, a_low[k], high[2 * k], high[2 * k + 1]);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    MmaTf32(products, a[k], LowOf(b[2 * k], high[2 * k]), LowOf(b[2 * k + 1], high[2 * k + 1]));
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) MmaTf32(products, a[k], high[2 * k], high[2 * k + 1]);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLIT_CUH_
