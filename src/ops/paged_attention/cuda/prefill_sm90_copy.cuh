// What the Hopper prefill kernel does before its pieces, over a cache of fp8: it copies the keys
// and values of the sequences that have a place in the copy (copy.cuh).
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_COPY_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_COPY_CUH_

#include "src/ops/paged_attention/cuda/copy_units.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr bool kCopiesKeys = kConverts && sizeof(Out) == 2;

// Two elements of fp8 (the lower 16 bits of `pair`) in the query's type, exact.
__device__ __forceinline__ unsigned CopyPair(unsigned pair) {
  const unsigned halves = F8PairToF16Pair<Cache>(pair);
  if constexpr (kSameType<Query, F16>) return halves;
  return Pack2<Query>(ToFloat(F16{static_cast<unsigned short>(halves)}),
                      ToFloat(F16{static_cast<unsigned short>(halves >> 16)}));
}

// All threads.
__device__ __forceinline__ void CopyKeys(const Params& p) {
  constexpr int kRowLanes = kHeadDim / 8;               // of 8 elements each
  constexpr int kStepRows = 32 / kRowLanes;             // that a warp copies at once
  constexpr int kSteps = kCopyTokens * kRowLanes / 32;  // all of them are loaded at once
  const int lane = threadIdx.x % 32;
  ForCopyUnits(p, [&](int unit, int head, long long own) {
    uint2 x[2][kSteps];  // keys, values
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const long long row = __shfl_sync(kAllLanes, own, i * kStepRows + lane / kRowLanes);
      const long long from = row + head * p.head_stride + lane % kRowLanes * 8;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x[j][i] = make_uint2(0, 0);
        if (row >= 0) {
          x[j][i] = __ldcs(reinterpret_cast<const uint2*>((j == 0 ? p.k_cache : p.v_cache) + from));
        }
      }
    }
    const long long to = static_cast<long long>(unit) * (kCopyTokens * kHeadDim * 2) + lane * 16;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      char* const rows = (j == 0 ? p.copied_keys : p.copied_values) + to;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const uint2& y = x[j][i];
        *reinterpret_cast<uint4*>(rows + i * 512) =
            make_uint4(CopyPair(y.x & 0xffffu), CopyPair(y.x >> 16), CopyPair(y.y & 0xffffu),
                       CopyPair(y.y >> 16));
      }
    }
  });
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_COPY_CUH_
