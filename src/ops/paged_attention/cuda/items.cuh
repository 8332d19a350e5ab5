// From a sequence's lengths to its items, and whether those of all sequences are whole: for the
// schedule, and for prefill's blocks, which find their first piece beside it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ITEMS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ITEMS_CUH_

#include "src/ops/paged_attention/cuda/copy.cuh"

namespace xla_gpu::paged_attention {
namespace {

__device__ __forceinline__ int Min(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int Max(int a, int b) { return a > b ? a : b; }
// Of a >= 0 and b > 0.
__device__ __forceinline__ int CeilDiv(int a, int b) {
  return static_cast<int>((static_cast<unsigned>(a) + static_cast<unsigned>(b) - 1u) /
                          static_cast<unsigned>(b));
}

// Of values below 2^53, whose sum over the warp fits 64 bits.
__device__ __forceinline__ unsigned long long WarpSum(unsigned long long x) {
  constexpr unsigned kLow = (1u << 26) - 1u;
  const unsigned low = __reduce_add_sync(kAllLanes, static_cast<unsigned>(x) & kLow);
  const unsigned high = __reduce_add_sync(kAllLanes, static_cast<unsigned>(x >> 26));
  return (static_cast<unsigned long long>(high) << 26) + low;
}
__device__ __forceinline__ int WarpSum(int x) { return __reduce_add_sync(kAllLanes, x); }
__device__ __forceinline__ int WarpMax(int x) { return __reduce_max_sync(kAllLanes, x); }

// Of one kind of items, over all sequences.
struct Work {
  unsigned long long tokens;  // keys times tiles
  int tiles;
  int max_keys;
  int longest_tiles;  // of a sequence with so many keys
};
// What a sequence asks for.
struct Shape {
  int rows;          // of all its query tokens
  int tiles;         // 0: no work
  int tile_rows;     // a power of two, or three times one
  int visible_keys;  // to some row
  bool decode;
  bool copied;  // IsCopied
};

__device__ __forceinline__ bool IsDecode(const Params& p, const SequenceInfo& info) {
  return info.query_len * p.group_size <= p.decode_max_rows;
}

// `kThirds`: tiles may have rows of three times a power of two.
template <bool kCopies = true, bool kThirds = true>
__device__ __forceinline__ Shape ShapeOf(const Params& p, const SequenceInfo& info) {
  Shape shape;
  shape.rows = info.query_len * p.group_size;
  shape.decode = IsDecode(p, info);
  shape.copied = kCopies && IsCopied(p, info);
  shape.tile_rows = shape.decode   ? kDecodeTileRows
                    : shape.copied ? p.copied_tile_rows
                                   : p.prefill_tile_rows;
  const int unit = kThirds ? shape.tile_rows & -shape.tile_rows : shape.tile_rows;
  shape.tiles = static_cast<int>(
      (static_cast<unsigned>(shape.rows) + static_cast<unsigned>(unit) - 1u) >> (31 - __clz(unit)));
  if (kThirds && unit != shape.tile_rows) shape.tiles = CeilDiv(shape.tiles, 3);
  if (shape.decode && p.decode_ranges > 0) shape.tiles = 0;  // they are on the line
  const int first_pos = info.context_len - info.query_len;
  const int first_key = p.window == 0 ? 0 : Max(0, first_pos - p.window + 1);
  shape.visible_keys = Max(info.context_len - first_key, 1);
  return shape;
}

// What its items cost.
__device__ __forceinline__ Work WorkOf(const Params& p, const SequenceInfo& info,
                                       const Shape& shape) {
  // Of the keys of its own tokens a prefill tile sees about half.
  const int hidden = p.causal && !shape.decode ? Min(info.query_len, shape.visible_keys) / 2 : 0;
  return {static_cast<unsigned long long>(shape.visible_keys - hidden) *
              static_cast<unsigned>(shape.tiles),
          shape.tiles, shape.tiles > 0 ? shape.visible_keys : 0, shape.tiles};
}

// How items of a kind are cut, and what that costs, in tokens of keys.
struct Cut {
  int workers;
  int workers_per_sm;
  int block;         // lengths are multiples of this power of two
  int least_blocks;  // of an item
  int item_tokens;   // what starting and ending an item costs
  int merge_tokens;  // what merging splits costs,
  float row_tokens;  // and each row of partial results
};

// `launch`: prefill items have one, else one block of attend merges a tile.
__device__ __forceinline__ Cut CutOf(const Params& p, bool decode, bool launch, int workers) {
  if (decode) return {workers, p.workers_per_sm, kSplitTokens, 2, 128, 64, 0.0f};
  return {workers, launch ? 1 : p.workers_per_sm, kPrefillSplitTokens, 4, 256, launch ? 256 : 2048,
          0.015f};
}

// Whether no item is better cut: the longest may be too short for parts; of many prefill items none
// is long enough for others to wait for it; and parts, two of each tile of the longest sequence at
// least, would have to gain more than they and a merge cost, even if all workers shared all tokens.
// No compiler may round it otherwise than another: all who ask have to agree.
__device__ __forceinline__ bool AreWhole(const Params& p, bool decode, const Cut& cut,
                                         const Work& work) {
  if (work.max_keys <= cut.least_blocks * cut.block || p.batch_invariant) return true;
  const int pieces = work.tiles * p.kv_heads, per_sm = cut.workers_per_sm;
  const float workers = static_cast<float>(cut.workers);
  const float tokens = __fmul_rn(static_cast<float>(work.tokens), static_cast<float>(p.kv_heads));
  const float longest = static_cast<float>(work.max_keys);
  if (!decode && __fmul_rn(4.0f * workers, longest) <= tokens) return true;
  // The cost of whole items (as cost_of in ChooseSplit) against that of such parts, times workers,
  // and the first time also times pieces.
  const int waves = CeilDiv(pieces * per_sm, cut.workers);  // of one worker a multiprocessor
  const int more = CeilDiv(pieces + work.longest_tiles * p.kv_heads, cut.workers) -
                   CeilDiv(pieces, cut.workers);  // items of a worker
  const int parts = (cut.merge_tokens + more * cut.item_tokens) * per_sm;
  const float merge = __fmul_rn(static_cast<float>(parts), workers);
  const float idle = static_cast<float>(waves * cut.workers - pieces * per_sm);
  const int least = (work.max_keys + cut.block - 1) & -cut.block;
  const int besides = cut.item_tokens * (per_sm - waves) - parts;
  return __fmul_rn(tokens, idle) <= __fmul_rn(merge, static_cast<float>(pieces)) &&
         __fmul_rn(static_cast<float>(least + besides), workers) <=
             __fmul_rn(tokens, static_cast<float>(per_sm));
}

// Item `from_end` of a sequence, counted from its last: the last tile sees most keys.
__device__ __forceinline__ WorkItem MakeItem(const Params& p, int seq, const SequenceInfo& info,
                                             const Shape& shape, int from_end, int splits,
                                             int partial_begin) {
  // One split of all tiles after the other: they read the same keys.
  int split = 0, tile = from_end;
  if (splits > 1) {
    split = static_cast<int>(static_cast<unsigned>(from_end) / static_cast<unsigned>(shape.tiles));
    tile -= split * shape.tiles;
  }
  WorkItem item;
  item.kind = shape.decode ? kDecodeItem : kPrefillItem;
  item.seq = seq;
  item.query_begin = info.query_begin;
  item.first_row = tile * shape.tile_rows;
  item.num_rows = Min(shape.tile_rows, shape.rows - item.first_row);
  item.rows = shape.rows;
  item.first_pos = info.context_len - info.query_len;
  item.split = split;
  item.splits = splits;
  item.partial_begin = partial_begin;

  const Keys keys = KeysOf(p, info, item.first_row, item.num_rows);
  int begin = keys.begin, end = keys.end;
  if (splits > 1) {  // whole blocks of keys each
    const int block = shape.decode ? kSplitTokens : kPrefillSplitTokens;
    const int first = begin / block;
    const int blocks = (end - 1) / block + 1 - first;
    const int each = CeilDiv(Max(blocks, 0), splits);
    const long long from = (first + static_cast<long long>(item.split) * each) * block;
    const long long to = from + static_cast<long long>(each) * block;
    begin = Max(begin, from < end ? static_cast<int>(from) : end);
    end = to < end ? static_cast<int>(to) : end;
  }
  item.key_begin = begin;
  item.key_end = Max(end, begin);
  return item;
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ITEMS_CUH_
