// 8-bit elements of a matrix as operands of Hopper's matrix instructions, all values exact.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONVERT_SM90_CUH_
#define XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONVERT_SM90_CUH_

#include "src/cuda/wgmma.cuh"
#include "src/ops/grouped_matmul/cuda/params.cuh"

namespace xla_gpu::grouped_matmul::sm90 {

// Two 16-bit values, f16, as values of type To.
template <typename To>
__device__ __forceinline__ unsigned FromF16Pair(unsigned pair) {
  if constexpr (kSameType<To, F16>) return pair;
  const auto half = [](unsigned x) { return ToFloat(F16{static_cast<unsigned short>(x)}); };
  return Pack2<To>(half(pair), half(pair >> 16));
}

// Of four neighbouring columns, each byte of `even` and `odd` (an even row's elements and the next
// one's) as a pair of type To.
template <typename To, typename From>
__device__ __forceinline__ void ConvertPairs(unsigned even, unsigned odd, unsigned (&pairs)[4]) {
  if constexpr (kSameType<From, signed char>) {
    // 128 + the lower seven bits, less 128, or 256 of a negative one.
    constexpr unsigned kBase = kSameType<To, BF16> ? 0x43004300u : 0x64006400u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned bytes = __byte_perm(even, odd, 0x4400u + 0x1111u * i);
      const unsigned low = (bytes & 0x007f007fu) | kBase, sign = (bytes & 0x00800080u) | kBase;
      if constexpr (kSameType<To, BF16>) {
        asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(low), "r"(sign));
      } else {
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(low), "r"(sign));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const unsigned bytes = __byte_perm(even, odd, i == 0 ? 0x5140u : 0x7362u);
      pairs[i] = FromF16Pair<To>(F8PairToF16Pair<From>(bytes & 0xffffu));
      pairs[i + 1] = FromF16Pair<To>(F8PairToF16Pair<From>(bytes >> 16));
    }
  }
}

// A warpgroup's operand of 128 columns, two of four neighbouring ones in each of two matrix
// instructions: thread (warp w, g = lane / 4) has columns 4 * (8 * w + g) to + 3.
using Operand = unsigned[2][4];

// A thread's elements of a stage's panel (rows of 128 bytes, swizzled): of each 16 rows four
// columns of rows 2 * (lane % 4) and the next one, and of those 8 further.
struct Elements {
  // All at once, so that only the first is waited for.
  __device__ __forceinline__ explicit Elements(unsigned panel) {
    const int lane = threadIdx.x % 32, column = 32 * (threadIdx.x / 32 % 4) + lane / 4 * 4;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const unsigned place = panel + SwizzledChunk(lane % 4 * 2 + odd, column / 16) + column % 16;
#pragma unroll
      for (int i = 0; i < kStageInner / 8; ++i) {
        words_[i][odd] = LoadShared<unsigned>(place + i * 1024);
      }
    }
  }

  // The operand of rows [16 * step, 16 * step + 16).
  template <typename To, typename From>
  __device__ __forceinline__ void Convert(int step, Operand& a) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned(&words)[2] = words_[2 * step + half];
      unsigned pairs[4];
      ConvertPairs<To, From>(words[0], words[1], pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i / 2][2 * half + i % 2] = pairs[i];
    }
  }

 private:
  unsigned words_[kStageInner / 8][2];
};

}  // namespace xla_gpu::grouped_matmul::sm90

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONVERT_SM90_CUH_
