// How the schedule cuts key ranges: pieces of the decode and prefill items, chosen from the lengths
// of all sequences so that the workers end together.
//
// Defines: those of schedule.cuh.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_

#include "src/ops/paged_attention/cuda/items.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kScheduleThreads = SCHEDULE_THREADS;
constexpr bool kLineOnly = LINE_ONLY != 0;
constexpr int kScheduleWarps = kScheduleThreads / 32;
constexpr int kCandidates = 32;  // one a lane
constexpr int kMostInt = 0x7fffffff;

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

__device__ __forceinline__ int SplitsOf(const Params& p, const Shape& shape, int split_tokens) {
  if (p.batch_invariant && shape.decode) {
    return Min(kInvariantMaxSplits, CeilDiv(shape.visible_keys, kInvariantSplitTokens));
  }
  if (shape.visible_keys <= split_tokens) return 1;  // without a division
  return CeilDiv(shape.visible_keys, split_tokens);
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
// `room`: for partial rows of all heads. The unit of the estimate is what a worker does with one
// token; workers share their SM's bandwidth, and one alone has all of it.
__device__ __forceinline__ Split ChooseSplit(const Params& p, bool decode, bool launch,
                                             const Work& work, int of_workers, int num_seqs,
                                             int room, const SequenceInfo* infos, Counts& counts) {
  constexpr float kImpossible = 3.0e38f;
  const Cut cut = CutOf(p, decode, launch, of_workers);
  if (AreWhole(p, decode, cut, work)) return {kMostInt, work.tiles, 0};

  // What it costs if the longest item has so many tokens.
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(cut.workers);
  const float tokens = static_cast<float>(work.tokens) * kv_heads;
  const float share = 1.0f / static_cast<float>(cut.workers_per_sm);
  const float sms = workers * share, item_tokens = static_cast<float>(cut.item_tokens);
  const auto cost_of = [&](float pieces, int longest) {
    const float reading = ceilf(__fdividef(pieces, sms)) * __fdividef(tokens, pieces) * share;
    return fmaxf(reading + ceilf(__fdividef(pieces, workers)) * item_tokens,
                 static_cast<float>(longest) * share + item_tokens);
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split_tokens = CandidateLength(p, cut, work, lane);

  // Count what each candidate asks for.
  int items = 0, partial_rows = 0;
#pragma unroll 1
  for (int s = warp; s < num_seqs; s += kScheduleWarps) {
    const SequenceInfo info = s < kScheduleThreads ? infos[s] : p.sequences[s];
    if (IsDecode(p, info) != decode || info.query_len == 0) continue;
    const Shape shape = ShapeOf(p, info);
    const long long splits = CeilDiv(shape.visible_keys, split_tokens);
    items = AddUpTo(items, splits * shape.tiles);
    if (splits > 1) partial_rows = AddUpTo(partial_rows, splits * shape.rows);
  }
  if (decode) __syncthreads();  // what was counted of prefill is read
  counts.items[warp][lane] = items;
  counts.partial_rows[warp][lane] = partial_rows;
  __syncthreads();
  items = partial_rows = 0;
#pragma unroll 1
  for (int w = 0; w < Min(kScheduleWarps, num_seqs); ++w) {
    items = AddUpTo(items, counts.items[w][lane]);
    partial_rows = AddUpTo(partial_rows, counts.partial_rows[w][lane]);
  }

  // Estimate what each costs.
  float cost = cost_of(static_cast<float>(items) * kv_heads, split_tokens);
  if (partial_rows > 0) {
    cost += static_cast<float>(cut.merge_tokens) +
            cut.row_tokens * static_cast<float>(partial_rows) * kv_heads;
  }
  // Without any split nothing is merged, so that the first candidate always fits.
  if (static_cast<long long>(partial_rows) * p.kv_heads > room) cost = kImpossible;

  // The cheapest. Costs are positive: their bits are in their order.
  const float least = __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(cost)));
  const int best = __ffs(static_cast<int>(__ballot_sync(kAllLanes, cost == least))) - 1;
  return {__shfl_sync(kAllLanes, split_tokens, best), __shfl_sync(kAllLanes, items, best),
          __shfl_sync(kAllLanes, partial_rows, best)};
}

// Of both kinds, one after the other by the same code: what runs once waits for its code.
__device__ __forceinline__ Splits ChooseSplits(const Params& p, const Totals& totals, bool launch,
                                               int prefill_workers, int num_seqs,
                                               const SequenceInfo* infos, Counts& counts) {
  Splits chosen;
  int room = totals.decode.tiles > 0 ? p.partial_capacity / 4 * 3 : p.partial_capacity;
#pragma unroll 1
  for (int decode = 0;; decode = 1) {
    const Work work = decode ? totals.decode : totals.prefill;
    const Split split = ChooseSplit(p, decode, launch, work, decode ? p.workers : prefill_workers,
                                    num_seqs, room, infos, counts);
    if (decode) {
      chosen.decode = split;
      return chosen;
    }
    chosen.prefill = split;
    room = p.partial_capacity - split.partial_rows * p.kv_heads;
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
