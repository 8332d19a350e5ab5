// From a sequence's lengths to its items, and how those of all sequences are cut: for the schedule,
// and for prefill's blocks, which find their first piece beside it.
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
};
// What a sequence asks for.
struct Shape {
  int rows;          // of all its query tokens
  int tiles;         // 0: no work
  int tile_rows;     // a power of two
  int visible_keys;  // to some row
  bool decode;
  bool copied;  // IsCopied
};

__device__ __forceinline__ bool IsDecode(const Params& p, const SequenceInfo& info) {
  return info.query_len * p.group_size <= p.decode_max_rows;
}

template <bool kCopies = true>
__device__ __forceinline__ Shape ShapeOf(const Params& p, const SequenceInfo& info) {
  Shape shape;
  shape.rows = info.query_len * p.group_size;
  shape.decode = IsDecode(p, info);
  shape.copied = kCopies && IsCopied(p, info);
  shape.tile_rows = shape.decode   ? kDecodeTileRows
                    : shape.copied ? p.copied_tile_rows
                                   : p.prefill_tile_rows;
  shape.tiles = static_cast<int>(
      (static_cast<unsigned>(shape.rows) + static_cast<unsigned>(shape.tile_rows) - 1u) >>
      (31 - __clz(shape.tile_rows)));
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
          shape.tiles, shape.tiles > 0 ? shape.visible_keys : 0};
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

// Whether no item is better cut: of many prefill items none is long enough for others to wait for
// it, and parts would have to gain more than a merge costs, even if all workers shared all tokens.
// No compiler may round it otherwise than another: all who ask have to agree.
__device__ __forceinline__ bool AreWhole(const Params& p, bool decode, const Cut& cut,
                                         const Work& work) {
  if (work.tiles == 0 || p.batch_invariant) return true;
  const int pieces = work.tiles * p.kv_heads, per_sm = cut.workers_per_sm;
  const float workers = static_cast<float>(cut.workers);
  const float tokens = __fmul_rn(static_cast<float>(work.tokens), static_cast<float>(p.kv_heads));
  const float longest = static_cast<float>(work.max_keys);
  if (!decode && __fmul_rn(4.0f * workers, longest) <= tokens) return true;
  // The cost of whole items (as cost_of in ChooseSplit) against that of such parts, times workers,
  // and the first time also times pieces.
  const int waves = CeilDiv(pieces * per_sm, cut.workers);  // of one worker a multiprocessor
  const float merge = __fmul_rn(static_cast<float>(cut.merge_tokens * per_sm), workers);
  const float idle = static_cast<float>(waves * cut.workers - pieces * per_sm);
  const int least = Max((work.max_keys + cut.block - 1) & -cut.block, cut.least_blocks * cut.block);
  const int besides = cut.item_tokens * (per_sm - waves) - cut.merge_tokens * per_sm;
  return __fmul_rn(tokens, idle) <= __fmul_rn(merge, static_cast<float>(pieces)) &&
         __fmul_rn(static_cast<float>(least + besides), workers) <=
             __fmul_rn(tokens, static_cast<float>(per_sm));
}

constexpr int kMostInt = 0x7fffffff;
constexpr int kCandidates = 32;  // for the length of items, one a lane

__device__ __forceinline__ int AddUpTo(int a, long long b) {
  const long long sum = a + b;
  return sum < kMostInt ? static_cast<int>(sum) : kMostInt;
}

// How the key ranges of one kind of items are cut, and what that asks for in each kv head: at most
// kMostInt, which is more than fit.
struct KeySplit {
  int tokens;  // most of one item
  int items;
  int partial_rows;

  // Of a sequence.
  __device__ __forceinline__ void Add(int rows, int tiles, int visible_keys) {
    const long long splits = CeilDiv(visible_keys, tokens);
    items = AddUpTo(items, splits * tiles);
    if (splits > 1) partial_rows = AddUpTo(partial_rows, splits * rows);
  }
};

__device__ __forceinline__ int SplitsOf(const Params& p, const Shape& shape, int split_tokens) {
  if (p.batch_invariant && shape.decode) {
    return Min(kInvariantMaxSplits, CeilDiv(shape.visible_keys, kInvariantSplitTokens));
  }
  if (shape.visible_keys <= split_tokens) return 1;  // without a division
  return CeilDiv(shape.visible_keys, split_tokens);
}

// A candidate for the length of items. All are guesses, so that f32 is good enough; but whatever is
// rounded is so by itself, since all who ask have to agree, as in AreWhole.
__device__ __forceinline__ int CandidateLength(const Params& p, const Cut& cut, const Work& work,
                                               int candidate) {
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(cut.workers);
  const float max_keys = static_cast<float>(work.max_keys);
  float of = max_keys, parts;
  if (candidate < 8) {  // so many splits of the longest sequence
    parts = static_cast<float>(candidate + 1);
  } else if (candidate < 16) {  // so many full waves, if all are of one length
    const float pieces = static_cast<float>(work.tiles) * kv_heads;
    const float waves = static_cast<float>(candidate - 7);
    parts = fmaxf(floorf(__fdiv_rn(waves * workers, pieces)), 1.0f);
  } else {  // so many items a worker
    of = static_cast<float>(work.tokens) * kv_heads;
    parts = static_cast<float>(candidate - 15) * workers;
  }
  const int tokens = static_cast<int>(fminf(__fdiv_rn(of, parts), max_keys)) + 1;
  const int longest = Min(tokens, work.max_keys);
  return Max(CeilDiv(longest, cut.block), cut.least_blocks) * cut.block;
}

// The candidate that ends soonest, of one a lane. `room`: for partial rows of all heads. The unit
// of the estimate is what a worker does with one token; workers share their SM's bandwidth, and one
// alone has all of it. All who ask have to agree, as in AreWhole.
__device__ __forceinline__ KeySplit Cheapest(const Params& p, const Cut& cut, const Work& work,
                                             int room, const KeySplit& candidate) {
  constexpr float kImpossible = 3.0e38f;
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(cut.workers);
  const float share = 1.0f / static_cast<float>(cut.workers_per_sm);
  const float item_tokens = static_cast<float>(cut.item_tokens);
  const float tokens = __fmul_rn(static_cast<float>(work.tokens), kv_heads);
  const float pieces = __fmul_rn(static_cast<float>(candidate.items), kv_heads);
  const float turns = ceilf(__fdiv_rn(pieces, __fmul_rn(workers, share)));
  const float reading = __fmul_rn(__fmul_rn(turns, __fdiv_rn(tokens, pieces)), share);
  float cost = fmaxf(__fmaf_rn(ceilf(__fdiv_rn(pieces, workers)), item_tokens, reading),
                     __fmaf_rn(static_cast<float>(candidate.tokens), share, item_tokens));
  if (candidate.partial_rows > 0) {
    const float rows = __fmul_rn(static_cast<float>(candidate.partial_rows), kv_heads);
    cost = __fadd_rn(cost, __fmaf_rn(cut.row_tokens, rows, static_cast<float>(cut.merge_tokens)));
  }
  // Without any split nothing is merged, so that the first candidate always fits.
  if (static_cast<long long>(candidate.partial_rows) * p.kv_heads > room) cost = kImpossible;

  // Costs are positive: their bits are in their order.
  const float least = __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(cost)));
  const int best = __ffs(static_cast<int>(__ballot_sync(kAllLanes, cost == least))) - 1;
  return {__shfl_sync(kAllLanes, candidate.tokens, best),
          __shfl_sync(kAllLanes, candidate.items, best),
          __shfl_sync(kAllLanes, candidate.partial_rows, best)};
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
