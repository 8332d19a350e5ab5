// paged_attention on Hopper, launch in front of prefill over a cache of f32: writes the terms
// (terms.cuh) of the keys and values of the sequences that have a place in the copy (copy.cuh).
//
// Defines: HEAD_DIM, 64 or 128; SOFT_CAP=0 and PLAIN=1, which its headers want.
#include "src/ops/paged_attention/cuda/copy_units.cuh"
#include "src/ops/paged_attention/cuda/terms.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kHeadDim = HEAD_DIM;
constexpr int kTogether = 8;  // rows that a warp loads before it splits them
using Dims = LaneDims<kHeadDim>;

// Goes over kCopyTokens rows of a head: split(row, dims). `own`: as ForCopyUnits says, of that
// head.
template <typename Split>
__device__ __forceinline__ void ForRows(const char* cache, long long own, Split split) {
#pragma unroll 1
  for (int from = 0; from < kCopyTokens; from += kTogether) {
    Dims x[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const long long row = __shfl_sync(kAllLanes, own, from + i);
      x[i] = {};
      if (row >= 0) x[i] = reinterpret_cast<const Dims*>(cache + row)[threadIdx.x % 32];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) split(from + i, x[i]);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCopyThreads, 1)
    paged_attention_copy_terms(const __grid_constant__ Params p) {
  WaitForLaunchesBefore();
  LetNextLaunchBegin();
  constexpr int kRowBytes = kHeadDim * 2, kLaneBytes = kRowBytes / 32;
  const long long term_bytes = static_cast<long long>(p.copy_capacity) * p.kv_heads * kRowBytes;
  ForCopyUnits(p, [&](int unit, int head, long long own) {
    const long long of_head = own < 0 ? own : own + head * p.head_stride;
    const long long place =
        static_cast<long long>(unit) * (kCopyTokens * kRowBytes) + threadIdx.x % 32 * kLaneBytes;
    const auto store_to = [&](char* copy, int row) {
      return [to = copy + place + row * kRowBytes, term_bytes](int term, const auto& pairs) {
        StoreVector(to + term * term_bytes, pairs);
      };
    };
    ForRows(p.k_cache, of_head, [&](int row, Dims& x) {
#pragma unroll
      for (float& element : x.x) element *= kKeyScale;
      const bool valid = SumOfMagnitudes(x) <= kMostKeySum;
      SplitRow<F16, kTermsOfDots>(x, valid, store_to(p.copied_keys, row));
    });
    ForRows(p.v_cache, of_head, [&](int row, const Dims& x) {
      SplitRow<BF16, kTermsOfValues>(x, true, store_to(p.copied_values, row));
    });
  });
}

}  // namespace xla_gpu::paged_attention
