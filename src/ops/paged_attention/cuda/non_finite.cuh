// Values that are NaN or infinite, where some rows of a tile see their key and others do not. A
// matrix instruction would spread them to all rows, since 0 * NaN is NaN. So in the blocks of keys
// that not every row sees they are zeroed in shared memory, and once the tile is done the rows that
// do see them get them by hand. Nothing of this is on the way of blocks that all rows see.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_NON_FINITE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_NON_FINITE_CUH_

#include "src/ops/paged_attention/cuda/softmax.cuh"

namespace xla_gpu::paged_attention {

// Blocks of keys that reach outside of this have keys that some row of the tile does not see.
__device__ __forceinline__ Visible SeenByAll(const Params& p, const Tile& tile) {
  return {VisibleKeys(p, tile, tile.num_rows - 1).begin, VisibleKeys(p, tile, 0).end};
}

__device__ __forceinline__ bool IsFinite(float x) { return fabsf(x) <= 3.4028235e38f; }

// The exponent bits of the cache's type in each element of a word (of E4M3, which has no infinity,
// all bits but the sign), their lowest, and the sign.
template <typename T>
struct ExponentBits {
  static constexpr unsigned kAll = kSameType<T, float>  ? 0x7f800000u
                                   : kSameType<T, BF16> ? 0x7f807f80u
                                   : kSameType<T, F16>  ? 0x7c007c00u
                                   : kSameType<T, E4M3> ? 0x7f7f7f7fu
                                                        : 0x7c7c7c7cu;
  static constexpr unsigned kSign = sizeof(T) == 1   ? 0x80808080u
                                    : sizeof(T) == 2 ? 0x80008000u
                                                     : 0x80000000u;
  static constexpr unsigned kLowest = kAll & ~(kAll << 1);
};

// The elements of a word that are not finite, as their sign bits, and as a mask.
template <typename T>
__device__ __forceinline__ unsigned NonFiniteSigns(unsigned word) {
  using Bits = ExponentBits<T>;
  return ((word & Bits::kAll) + Bits::kLowest) & Bits::kSign;
}
template <typename T>
__device__ __forceinline__ unsigned NonFiniteMask(unsigned word) {
  return (NonFiniteSigns<T>(word) >> (8 * sizeof(T) - 1)) * (~0u >> (32 - 8 * sizeof(T)));
}

// Zeroes what is not finite in rows of shared memory, by `threads` threads of which this is number
// `thread`; true if this one found some. The caller synchronises before and after.
template <int kRows, int kRowBytes, int kStride>
__device__ __forceinline__ bool ZeroNonFinite(unsigned shared, int thread, int threads) {
  constexpr int kRowChunks = kRowBytes / 16;
  unsigned found = 0;
#pragma unroll 2
  for (int i = thread; i < kRows * kRowChunks; i += threads) {
    const unsigned at = shared + i / kRowChunks * kStride + i % kRowChunks * 16;
    uint4 x = LoadShared<uint4>(at);
    const uint4 mask = {NonFiniteMask<Cache>(x.x), NonFiniteMask<Cache>(x.y),
                        NonFiniteMask<Cache>(x.z), NonFiniteMask<Cache>(x.w)};
    const unsigned any = mask.x | mask.y | mask.z | mask.w;
    if (any != 0) {
      x.x &= ~mask.x, x.y &= ~mask.y, x.z &= ~mask.z, x.w &= ~mask.w;
      StoreShared(at, x);
    }
    found |= any;
  }
  return found != 0;
}

// Computes logits of the warp's part of f32 heads again that are not finite, from keys in shared
// memory and the warp's part of the thread's two query rows, of which query_at(h, d) gives
// elements.
template <int kStride, int kTiles, typename QueryAt>
__device__ __forceinline__ void RepairLogits(float (&s)[kTiles][4], unsigned keys,
                                             QueryAt query_at) {
  float doubt = 0.0f;  // or NaN
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) doubt = fmaf(s[tile][i], 0.0f, doubt);
  }
  if (!__any_sync(kAllLanes, doubt != 0.0f)) return;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (IsFinite(s[tile][i])) continue;
      const unsigned key = keys + (tile * 8 + threadIdx.x % 4 * 2 + i % 2) * kStride;
      float sum = 0.0f;
#pragma unroll 1
      for (int d = 0; d < min(kOwnDims, kHeadDim - FirstDim()); ++d) {
        sum = fmaf(query_at(i / 2, d), LoadShared<float>(key + d * 4), sum);
      }
      s[tile][i] = sum;
    }
  }
}

// Whether the tensor cores' products of f32 leave doubt about two rows' sums, of which the tile has
// `exists`: what is not finite must be taken out of the values first.
__device__ __forceinline__ bool InDoubt(const float (&o)[kOutTiles][4], const bool (&exists)[2]) {
  float doubt[2] = {};
#pragma unroll
  for (int t = 0; t < kOutTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) doubt[i / 2] = fmaf(o[t][i], 0.0f, doubt[i / 2]);
  }
  return (exists[0] && doubt[0] != 0.0f) || (exists[1] && doubt[1] != 0.0f);
}

// Goes over keys [key0, key0 + count) of the tile: add(key, finite, values), whether the key itself
// is finite, and its values, in the cache. All lanes of a warp.
template <typename Add>
__device__ __forceinline__ void ForKeys(const Params& p, const Tile& tile, int key0, int count,
                                        Add add) {
  const int end = min(key0 + count, tile.key_end);
#pragma unroll 1
  for (int key = max(key0, tile.key_begin); key < end; ++key) {
    const long long offset = KeyOffset(p, tile, key, PageOf(p, tile, key));
    if (offset < 0) continue;
    const long long of_head = offset + tile.head * p.head_stride;
    if constexpr (kSplit) {  // where there may be many such keys, with few values to add
      const Cache* values = reinterpret_cast<const Cache*>(p.v_cache + of_head);
      bool any = false;
      for (int d = threadIdx.x % 32; d < kHeadDim; d += 32) any |= !IsFinite(ToFloat(values[d]));
      if (!__any_sync(kAllLanes, any)) continue;
    }
    const Cache* keys = reinterpret_cast<const Cache*>(p.k_cache + of_head);
    bool finite = true;
    for (int d = 0; SOFT_CAP == 0 && d < kHeadDim; ++d) finite &= IsFinite(ToFloat(keys[d]));
    add(key, finite, reinterpret_cast<const Cache*>(p.v_cache + of_head));
  }
}

// Gives a sum of values what ZeroNonFinite took out of it, once nothing rescales it any more: the
// key's weight, if it is not 0, does not matter. It is 0 where the logit is -infinity, which takes
// a key (or all of the row's logits) that is not finite; 0 times an infinity is NaN.
__device__ __forceinline__ void AddIfNonFinite(float x, const Visible& visible, int key,
                                               bool has_weight, float& o) {
  if (IsFinite(x) || key < visible.begin || key >= visible.end) return;
  o += has_weight ? x : NaN();
}

// The same for all rows of a 16-row accumulator tile and keys [key0, key0 + count).
__device__ inline void AddNonFinite(const Params& p, const Tile& tile, int key0, int count,
                                    const Visible (&visible)[2], const RowState (&rows)[2],
                                    float (&o)[kOutTiles][4]) {
  const bool has_weight[2] = {QuadSum(rows[0].sum) != 0.0f, QuadSum(rows[1].sum) != 0.0f};
  ColdSums sums;
  sums.CopyFrom(o);
  ForKeys(p, tile, key0, count, [&](int key, bool finite, const Cache* values) {
    float scale = 1.0f;
    if constexpr (kTokenScales) {
      scale = TokenScale(p.v_token_scales, TokenScaleIndex(p, tile, key, PageOf(p, tile, key)));
    }
#pragma unroll 1
    for (int t = 0; t < kOutTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = DimOf(t, i % 2), h = i / 2;
        const float x = d < kHeadDim ? ToFloat(values[d]) * scale : 0.0f;
        AddIfNonFinite(x, visible[h], key, finite && has_weight[h], sums.x[4 * t + i]);
      }
    }
  });
  sums.CopyTo(o);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_NON_FINITE_CUH_
