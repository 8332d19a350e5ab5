// A piece of work as the attend kernels see it: key ranges, pages, places of its rows, and the end
// of a row.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_

#include "src/cuda/ptx.cuh"
#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Neither sinks, lse, scales of keys or values nor a negative scale: what most calls are. Code that
// is not run costs time too.
inline constexpr bool kPlain = PLAIN != 0;
__device__ __forceinline__ bool HasLse(const Params& p) { return !kPlain && p.lse != nullptr; }

__device__ __forceinline__ float Infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float NaN() { return __int_as_float(0x7fc00000); }

template <typename Combine>
__device__ __forceinline__ float WarpReduce(float x, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// Keys [begin, end) that the tile's row sees.
struct Visible {
  int begin;
  int end;
};

__device__ __forceinline__ Visible VisibleKeys(const Params& p, const Tile& tile, int row) {
  const int pos = tile.first_pos + Quotient(tile.first_row + row, p.by_group);
  Visible keys;
  keys.begin = p.window == 0 ? tile.key_begin : max(tile.key_begin, pos - p.window + 1);
  keys.end = p.causal ? min(tile.key_end, pos + 1) : tile.key_end;
  return keys;
}

__device__ __forceinline__ int PageIndex(const Params& p, int key) {
  return Quotient(key, p.by_page);
}

// The page of key `key` as the table says (unchecked), or -1 if the tile does not read the key.
__device__ __forceinline__ int PageOf(const Params& p, const Tile& tile, int key) {
  if (key < tile.key_begin || key >= tile.key_end) return -1;
  return LoadIndex(p.block_tables + static_cast<long long>(tile.seq) * p.max_pages +
                   PageIndex(p, key));
}

// Bytes from the cache's base to the key's row of head 0, or -1 where it must not be read. A page
// out of range marks the sequence invalid: the last block then makes its rows NaN.
__device__ __forceinline__ long long KeyOffset(const Params& p, const Tile& tile, int key,
                                               int page) {
  if (key < tile.key_begin || key >= tile.key_end) return -1;
  if (static_cast<unsigned>(page) >= static_cast<unsigned>(p.num_pages)) {
    p.state[tile.seq] = kInvalid;
    p.header->any_bad_page = 1;
    return -1;
  }
  const int in_page = key - PageIndex(p, key) * p.page_size;
  return page * p.page_stride + in_page * p.token_stride;
}

// Attend is compiled with TOKEN_SCALES for calls that have such scales.
#ifdef TOKEN_SCALES
inline constexpr bool kTokenScales = true;
#else
inline constexpr bool kTokenScales = false;
#endif

// Where the scale of a key that may be read lies in Params::k_token_scales, and that of its value.
__device__ __forceinline__ long long TokenScaleIndex(const Params& p, const Tile& tile, int key,
                                                     int page) {
  const int in_page = key - PageIndex(p, key) * p.page_size;
  return (static_cast<long long>(page) * p.page_size + in_page) * p.kv_heads + tile.head;
}
__device__ __forceinline__ float InfiniteToNaN(float x) { return x + 0.0f * x; }
__device__ __forceinline__ float TokenScale(const float* scales, long long index) {
  return scales == nullptr ? 1.0f : InfiniteToNaN(scales[index]);
}

// First element of the row in `query` and `out`, divided by head_dim: token * q_heads + q_head.
__device__ __forceinline__ long long QueryRow(const Params& p, const Tile& tile, int row) {
  const int at = tile.first_row + row;
  const int token = Quotient(at, p.by_group);
  const int in_group = at - token * p.group_size;
  return static_cast<long long>(tile.query_begin + token) * p.q_heads + tile.head * p.group_size +
         in_group;
}

// Where the row's result of one split lies among the partial results; the next split's lies
// `tile.rows` further.
__device__ __forceinline__ long long PartialRow(const Params& p, const Tile& tile, int split,
                                                int row) {
  return tile.partial_begin +
         (static_cast<long long>(tile.head) * tile.splits + split) * tile.rows + tile.first_row +
         row;
}
__device__ __forceinline__ long long PartialRow(const Params& p, const Tile& tile, int row) {
  return PartialRow(p, tile, tile.split, row);
}

// A logit is dot product * scales, or soft_cap * tanh of that. Kernels keep maxima in the units of
// the dot product (of the tanh, where there is a cap; the query's sign makes the scales positive)
// and scale differences: no factor overflows before the maximum is subtracted.
struct LogitFactor {
  bool negate;        // the query's sign
  float cap_in;       // with a soft cap: from dot product to Capped's argument
  float factor;       // from the maxima's units to log2 units, positive
  float to_logit[2];  // from a maximum to its logit, one after the other
};

__device__ __forceinline__ LogitFactor MakeLogitFactor(const Params& p, int head) {
  const float k_scale = kPlain || p.k_scale == nullptr ? 1.0f : p.k_scale[head * p.k_scale_step];
  // What overflows f32 is far beyond any difference of dot products; 0 times -infinity, the logit
  // of a hidden key, would be NaN. NaN if the scale is not finite.
  constexpr float kLeast = 1e-45f, kMost = 3.4028235e38f;
  const auto factor = [&](float of_scale) {
    return fminf(fmaxf(of_scale * fabsf(k_scale), kLeast), kMost) + 0.0f * k_scale;
  };
  const float scale = fabsf(p.scale);
  LogitFactor result;
  result.negate = !kPlain && (p.scale < 0.0f) != (k_scale < 0.0f);
  result.cap_in =
      SOFT_CAP ? factor(scale / p.soft_cap * (SOFT_CAP == 1 ? 2.0f * kLog2E : 1.0f)) : 0.0f;
  result.factor = SOFT_CAP ? p.soft_cap * kLog2E : factor(scale * kLog2E);
  // A factor that overflows f32 is not the scales any more. Then `scale` is above a half, and a
  // maximum that it makes infinite gives no other logit.
  const bool whole = SOFT_CAP || result.factor != kMost;
  result.to_logit[0] = whole ? result.factor * kLn2 : scale;
  result.to_logit[1] = whole ? 1.0f : fabsf(k_scale);
  return result;
}

// log2 of the weight of a logit, or of sums relative to a maximum, `from` where the maximum is
// `to`. Halves, since the difference of two f32 numbers may be none; -infinity if `from` is.
__device__ __forceinline__ float Log2Weight(float from, float to, float factor) {
  const float half_base = to == -Infinity() ? 0.0f : 0.5f * to;
  const float half = fmaf(0.5f, from, -half_base) * factor;
  return half + half;
}

// tanh of a logit / soft_cap: 1 - 2 / (exp(2x) + 1) keeps its absolute precision, enough for small
// caps; large ones need the relative one.
__device__ __forceinline__ float Capped(float dot, float cap_in) {
  if constexpr (SOFT_CAP == 2) return tanhf(dot * cap_in);
  return 1.0f - __fdividef(2.0f, Exp2(dot * cap_in) + 1.0f);
}

// How a row ends, from its maximum (in the units above) and the sum of weights relative to it.
struct RowEnd {
  float factor;  // of the sum of weight * value
  float lse;
  bool sees_nothing;

  __device__ __forceinline__ float Value(float x) const { return sees_nothing ? 0.0f : x * factor; }
};

__device__ __forceinline__ RowEnd FinishRow(const Params& p, const Tile& tile, long long query_row,
                                            const LogitFactor& logit, float max, float sum) {
  // May be infinite.
  float max_logit = max == -Infinity() ? max : max * logit.to_logit[0] * logit.to_logit[1];
  RowEnd end;
  end.factor = kPlain || p.v_scale == nullptr ? 1.0f : p.v_scale[tile.head * p.v_scale_step];
  end.sees_nothing = sum == 0.0f;
  if (!kPlain && p.sinks != nullptr) {
    const float sink = p.sinks[static_cast<int>(query_row % p.q_heads)];
    end.sees_nothing &= sink == -Infinity();
    const float larger = fmaxf(sink, max_logit);
    const float keep = max_logit == larger ? 1.0f : expf(max_logit - larger);
    sum = sum * keep + (sink == -Infinity() ? 0.0f : expf(sink - larger));
    end.factor *= keep;
    max_logit = larger;
  }
  end.lse = !HasLse(p) || end.sees_nothing ? -Infinity() : max_logit + logf(sum);
  end.factor /= sum;
  return end;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_
