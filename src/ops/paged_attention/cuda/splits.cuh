// How the schedule cuts key ranges: pieces of the decode and prefill items, chosen from the lengths
// of all sequences so that the workers end together.
//
// Defines: those of schedule.cuh.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_

#include "src/ops/paged_attention/cuda/copy.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kScheduleThreads = SCHEDULE_THREADS;
constexpr bool kLineOnly = LINE_ONLY != 0;
constexpr int kScheduleWarps = kScheduleThreads / 32;
constexpr int kCandidates = 32;  // one a lane
constexpr int kMostInt = 0x7fffffff;

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
struct Totals {
  Work decode;
  Work prefill;
  int owned_tokens;
  int line;   // its length, or that of the copy
  int order;  // Order
};

// How the key ranges of one kind of items are cut, and what that asks for in each kv head.
struct Split {
  int tokens;  // most of one item
  int items;
  int partial_rows;
};
struct Splits {
  Split decode;
  Split prefill;
};

// What a sequence asks for.
struct Shape {
  int rows;   // of all its query tokens
  int tiles;  // 0: no work
  int tile_rows;
  int visible_keys;  // to some row
  bool decode;
  bool copied;  // IsCopied
};

__device__ __forceinline__ bool IsDecode(const Params& p, const SequenceInfo& info) {
  return info.query_len * p.group_size <= p.decode_max_rows;
}

__device__ __forceinline__ Shape ShapeOf(const Params& p, const SequenceInfo& info) {
  Shape shape;
  shape.rows = info.query_len * p.group_size;
  shape.decode = IsDecode(p, info);
  shape.copied = IsCopied(p, info);
  shape.tile_rows = shape.decode   ? kDecodeTileRows
                    : shape.copied ? p.copied_tile_rows
                                   : p.prefill_tile_rows;
  shape.tiles = shape.decode ? (shape.rows + kDecodeTileRows - 1) / kDecodeTileRows
                             : CeilDiv(shape.rows, shape.tile_rows);
  if (shape.decode && p.decode_ranges > 0) shape.tiles = 0;  // they are on the line
  const int first_pos = info.context_len - info.query_len;
  const int first_key = p.window == 0 ? 0 : Max(0, first_pos - p.window + 1);
  shape.visible_keys = Max(info.context_len - first_key, 1);
  return shape;
}

__device__ __forceinline__ int SplitsOf(const Params& p, const Shape& shape, int split_tokens) {
  if (p.batch_invariant && shape.decode) {
    return Min(kInvariantMaxSplits, CeilDiv(shape.visible_keys, kInvariantSplitTokens));
  }
  return CeilDiv(shape.visible_keys, split_tokens);
}

// How items of a kind are cut, and what that costs, in tokens of keys.
struct Cut {
  int workers;
  int workers_per_sm;
  int block;           // lengths are multiples of this
  int least_blocks;    // of an item
  float item_tokens;   // what starting and ending an item costs
  float merge_tokens;  // what merging splits costs,
  float row_tokens;    // and each row of partial results
};

template <bool kDecode>
__device__ __forceinline__ Cut CutOf(const Params& p, int workers) {
  if (kDecode) return {workers, p.workers_per_sm, kSplitTokens, 2, 128.0f, 64.0f, 0.0f};
  const bool launch = p.prefill_launch != 0;  // else one block merges a tile
  return {workers,
          launch ? 1 : p.workers_per_sm,
          kPrefillSplitTokens,
          4,
          256.0f,
          launch ? 256.0f : 2048.0f,
          0.015f};
}

// A candidate for the length of items. All are guesses, so that f32 is good enough.
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
    parts = fmaxf(floorf(__fdividef(waves * workers, pieces)), 1.0f);
  } else {  // so many items a worker
    of = static_cast<float>(work.tokens) * kv_heads;
    parts = static_cast<float>(candidate - 15) * workers;
  }
  const int tokens = static_cast<int>(fminf(__fdividef(of, parts), max_keys)) + 1;
  const int longest = Min(tokens, work.max_keys);
  return Max(CeilDiv(longest, cut.block), cut.least_blocks) * cut.block;
}

// What each warp has counted for each candidate: at most kMostInt, which is more than fit.
struct Counts {
  int items[kScheduleWarps][kCandidates];
  int partial_rows[kScheduleWarps][kCandidates];
};

__device__ __forceinline__ int AddUpTo(int a, long long b) {
  const long long sum = a + b;
  return sum < kMostInt ? static_cast<int>(sum) : kMostInt;
}

// The candidate that ends soonest, one a lane; each warp counts the items of some sequences.
// `room`: for partial rows. The unit of the estimate is what a worker does with one token; workers
// share their SM's bandwidth, and one alone has all of it.
template <bool kDecode>
__device__ __forceinline__ Split ChooseSplit(const Params& p, const Work& work, int of_workers,
                                             int num_seqs, int room, const SequenceInfo* infos,
                                             Counts& counts) {
  constexpr float kImpossible = 3.0e38f;
  const Cut cut = CutOf<kDecode>(p, of_workers);
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(cut.workers);
  const float tokens = static_cast<float>(work.tokens) * kv_heads;
  // Of many prefill items none is long enough for others to wait for it.
  const bool many = !kDecode && 4.0f * workers * static_cast<float>(work.max_keys) <= tokens;
  const Split whole = {kMostInt, work.tiles, 0};
  if (p.batch_invariant || many || work.tiles == 0) return whole;

  // What it costs if the longest item has so many tokens.
  const float share = 1.0f / static_cast<float>(cut.workers_per_sm);
  const float sms = workers * share;
  const auto waves_cost = [&](float pieces) {
    return ceilf(__fdividef(pieces, workers)) * cut.item_tokens;
  };
  const auto cost_of = [&](float pieces, int longest) {
    const float reading = ceilf(__fdividef(pieces, sms)) * __fdividef(tokens, pieces) * share;
    return fmaxf(reading + waves_cost(pieces),
                 static_cast<float>(longest) * share + cut.item_tokens);
  };
  // Parts would have to gain more than a merge costs, even if all workers shared all tokens.
  const float pieces_of_whole = static_cast<float>(work.tiles) * kv_heads;
  const int longest = Max(CeilDiv(work.max_keys, cut.block), cut.least_blocks) * cut.block;
  const float least_of_parts =
      __fdividef(tokens, workers) + waves_cost(pieces_of_whole) + cut.merge_tokens;
  if (cost_of(pieces_of_whole, longest) <= least_of_parts) return whole;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split_tokens = CandidateLength(p, cut, work, lane);

  // Count what each candidate asks for.
  int items = 0, partial_rows = 0;
#pragma unroll 1
  for (int s = warp; s < num_seqs; s += kScheduleWarps) {
    const SequenceInfo info = s < kScheduleThreads ? infos[s] : p.sequences[s];
    if (IsDecode(p, info) != kDecode || info.query_len == 0) continue;
    const Shape shape = ShapeOf(p, info);
    const long long splits = CeilDiv(shape.visible_keys, split_tokens);
    items = AddUpTo(items, splits * shape.tiles);
    if (splits > 1) partial_rows = AddUpTo(partial_rows, splits * shape.rows);
  }
  if (kDecode) __syncthreads();  // what was counted of prefill is read
  counts.items[warp][lane] = items;
  counts.partial_rows[warp][lane] = partial_rows;
  __syncthreads();
  items = partial_rows = 0;
  for (int w = 0; w < Min(kScheduleWarps, num_seqs); ++w) {
    items = AddUpTo(items, counts.items[w][lane]);
    partial_rows = AddUpTo(partial_rows, counts.partial_rows[w][lane]);
  }

  // Estimate what each costs.
  float cost = cost_of(static_cast<float>(items) * kv_heads, split_tokens);
  if (partial_rows > 0) {
    cost += cut.merge_tokens + cut.row_tokens * static_cast<float>(partial_rows) * kv_heads;
  }
  // Without any split nothing is merged, so that the first candidate always fits.
  if (partial_rows > room) cost = kImpossible;

  // The cheapest. Costs are positive: their bits are in their order.
  const float least = __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(cost)));
  const int best = __ffs(static_cast<int>(__ballot_sync(kAllLanes, cost == least))) - 1;
  return {__shfl_sync(kAllLanes, split_tokens, best), __shfl_sync(kAllLanes, items, best),
          __shfl_sync(kAllLanes, partial_rows, best)};
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
