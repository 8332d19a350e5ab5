// A piece of work as the attend kernels see it: key ranges, pages, places of its rows, and the end
// of a row.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"
#include "src/ops/paged_attention/cuda/ptx.cuh"

namespace xla_gpu::paged_attention {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float Infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float NaN() { return __int_as_float(0x7fc00000); }

template <typename Combine>
__device__ __forceinline__ float WarpReduce(float x, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// One piece of work: an item for one of the kv heads.
struct Tile : WorkItem {
  int head;
};

// Keys [begin, end) that the tile's row sees.
struct Visible {
  int begin;
  int end;
};

__device__ __forceinline__ Visible VisibleKeys(const Params& p, const Tile& tile, int row) {
  const int pos = tile.first_pos + (tile.first_row + row) / p.group_size;
  Visible keys;
  keys.begin = p.window == 0 ? tile.key_begin : max(tile.key_begin, pos - p.window + 1);
  keys.end = p.causal ? min(tile.key_end, pos + 1) : tile.key_end;
  return keys;
}

// key / page_size: a multiplication by 2^(32 + shift) / page_size, rounded up, exact for 31 bits.
__device__ __forceinline__ int PageIndex(const Params& p, int key) {
  if (p.page_size == 1) return key;
  return static_cast<int>(__umulhi(static_cast<unsigned>(key), p.page_magic) >> p.page_shift);
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

// First element of the row in `query` and `out`, divided by head_dim: token * q_heads + q_head.
__device__ __forceinline__ long long QueryRow(const Params& p, const Tile& tile, int row) {
  const int at = tile.first_row + row;
  const int token = at / p.group_size;
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

// The end of a row that one item did alone: its maximal logit (natural units) and the sum of
// exp(logit - max) give the factor for its sum of values, and its lse.
__device__ __forceinline__ float FinishRow(const Params& p, const Tile& tile, long long query_row,
                                           float max_logit, float sum, float* lse) {
  const bool sees_nothing = sum == 0.0f;  // one that sees a key has a sum of at least 1
  float factor = p.v_scale == nullptr ? 1.0f : p.v_scale[tile.head * p.v_scale_step];
  if (p.sinks != nullptr && !sees_nothing) {
    const float sink = p.sinks[query_row % p.q_heads];
    const float larger = fmaxf(sink, max_logit);
    const float keep = expf(max_logit - larger);
    sum = sum * keep + expf(sink - larger);
    factor *= keep;
    max_logit = larger;
  }
  *lse = sees_nothing ? -Infinity() : max_logit + logf(sum);
  return sees_nothing ? 0.0f : factor / sum;
}

__device__ __forceinline__ float LogitScale(const Params& p, int head) {
  return p.scale * (p.k_scale == nullptr ? 1.0f : p.k_scale[head * p.k_scale_step]);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TILE_CUH_
