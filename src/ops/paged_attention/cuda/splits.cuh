// How the schedule cuts key ranges: pieces of the decode and prefill items, chosen from the lengths
// of all sequences so that the workers end together.
//
// Defines: those of schedule.cuh.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_

#include "src/ops/paged_attention/cuda/line.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kScheduleThreads = SCHEDULE_THREADS;
constexpr int kScheduleWarps = kScheduleThreads / 32;
constexpr int kCandidates = 32;  // one a lane
constexpr unsigned kAll = 0xffffffffu;
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
  const unsigned low = __reduce_add_sync(kAll, static_cast<unsigned>(x) & kLow);
  const unsigned high = __reduce_add_sync(kAll, static_cast<unsigned>(x >> 26));
  return (static_cast<unsigned long long>(high) << 26) + low;
}
__device__ __forceinline__ int WarpSum(int x) { return __reduce_add_sync(kAll, x); }
__device__ __forceinline__ int WarpMax(int x) { return __reduce_max_sync(kAll, x); }

// Over all sequences.
struct Totals {
  unsigned long long decode_tokens;  // keys times tiles
  unsigned long long prefill_rows;
  int decode_tiles;
  int decode_max_keys;
  int prefill_tiles;
  int prefill_max_keys;
  int owned_tokens;
  int line;   // its length
  int order;  // Order
};

// How the key ranges are cut.
struct Splits {
  int decode_tokens;  // most tokens of one decode item
  int prefill;        // pieces of each prefill tile
};

// What a sequence asks for.
struct Shape {
  int rows;   // of all its query tokens
  int tiles;  // 0: no work
  int tile_rows;
  int visible_keys;  // to some row
  bool decode;
};

__device__ __forceinline__ Shape ShapeOf(const Params& p, const SequenceInfo& info) {
  Shape shape;
  shape.rows = info.query_len * p.group_size;
  shape.decode = shape.rows <= p.decode_max_rows;
  shape.tile_rows = shape.decode ? kDecodeTileRows : p.prefill_tile_rows;
  shape.tiles = shape.decode ? (shape.rows + kDecodeTileRows - 1) / kDecodeTileRows
                             : CeilDiv(shape.rows, p.prefill_tile_rows);
  const int first_pos = info.context_len - info.query_len;
  const int first_key = p.window == 0 ? 0 : Max(0, first_pos - p.window + 1);
  shape.visible_keys = Max(info.context_len - first_key, 1);
  return shape;
}

__device__ __forceinline__ int DecodeSplits(const Params& p, const Shape& shape, int split_tokens) {
  if (p.batch_invariant) {
    return Min(kInvariantMaxSplits, CeilDiv(shape.visible_keys, kInvariantSplitTokens));
  }
  return CeilDiv(shape.visible_keys, split_tokens);
}

// Prefill tiles are split only where they are too few to fill the device.
__device__ __forceinline__ int ChoosePrefillSplits(const Params& p, const Totals& totals) {
  const long long pieces = static_cast<long long>(totals.prefill_tiles) * p.kv_heads;
  if (p.batch_invariant || pieces == 0 || pieces * 2 > p.prefill_workers) return 1;
  const long long rows = static_cast<long long>(totals.prefill_rows) * p.kv_heads;
  const int room = p.partial_capacity / 4 * 3;
  if (rows > room) return 1;
  const int splits =
      Min(p.prefill_workers / static_cast<int>(pieces), Max(1, totals.prefill_max_keys / 512));
  return Max(Min(splits, room / static_cast<int>(rows)), 1);
}

// A candidate for the length of decode items. All are guesses, so that f32 is good enough.
__device__ __forceinline__ int CandidateLength(const Params& p, const Totals& totals,
                                               int candidate) {
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(p.workers);
  const float max_keys = static_cast<float>(totals.decode_max_keys);
  float of = max_keys, parts;
  if (candidate < 8) {  // so many splits of the longest sequence
    parts = static_cast<float>(candidate + 1);
  } else if (candidate < 16) {  // so many full waves, if all are of one length
    const float pieces = static_cast<float>(totals.decode_tiles) * kv_heads;
    parts = fmaxf(floorf(static_cast<float>(candidate - 7) * workers / pieces), 1.0f);
  } else {  // so many items a worker
    of = static_cast<float>(totals.decode_tokens) * kv_heads;
    parts = static_cast<float>(candidate - 15) * workers;
  }
  const int tokens = static_cast<int>(fminf(of / parts, max_keys)) + 1;
  const int longest = Min(tokens, totals.decode_max_keys);
  return Max((longest + kSplitTokens - 1) / kSplitTokens, 2) * kSplitTokens;
}

// What each warp has counted for each candidate.
struct Counts {
  float items[kScheduleWarps][kCandidates];
  unsigned partial_rows[kScheduleWarps][kCandidates];  // at most kMostInt, which is more than fit
};

__device__ __forceinline__ unsigned AddRows(unsigned a, unsigned long long b) {
  const unsigned long long sum = a + b;
  return sum < kMostInt ? static_cast<unsigned>(sum) : kMostInt;
}

// The candidate that ends soonest, one a lane; each warp counts the items of some sequences. The
// unit of the estimate is what a worker reads of one token; workers share their SM's bandwidth, and
// one alone has all of it.
__device__ __forceinline__ int ChooseDecodeSplit(const Params& p, const Totals& totals,
                                                 int num_seqs, long long partial_rows_left,
                                                 const SequenceInfo* infos, Counts& counts) {
  constexpr float kItemTokens = 128;  // what starting and ending an item costs
  constexpr float kMergeTokens = 64;  // what merging splits costs
  constexpr float kImpossible = 3.0e38f;
  if (p.batch_invariant || totals.decode_tiles == 0) return kMostInt;  // there is nothing to choose
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split_tokens = CandidateLength(p, totals, lane);

  // Count what each candidate asks for.
  float items = 0.0f;
  unsigned partial_rows = 0;
#pragma unroll 1
  for (int s = warp; s < num_seqs; s += kScheduleWarps) {
    const SequenceInfo info = s < kScheduleThreads ? infos[s] : p.sequences[s];
    const Shape shape = ShapeOf(p, info);
    if (!shape.decode || shape.tiles == 0) continue;
    const int splits = CeilDiv(shape.visible_keys, split_tokens);
    items += static_cast<float>(splits) * static_cast<float>(shape.tiles);
    if (splits > 1) {
      partial_rows = AddRows(partial_rows, static_cast<unsigned long long>(splits) *
                                               static_cast<unsigned>(shape.rows));
    }
  }
  counts.items[warp][lane] = items;
  counts.partial_rows[warp][lane] = partial_rows;
  __syncthreads();
  items = 0.0f;
  partial_rows = 0;
  for (int w = 0; w < Min(kScheduleWarps, num_seqs); ++w) {
    items += counts.items[w][lane];
    partial_rows = AddRows(partial_rows, counts.partial_rows[w][lane]);
  }

  // Estimate what each costs.
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(p.workers);
  const float share = 1.0f / static_cast<float>(p.workers_per_sm);
  const float sms = workers / static_cast<float>(p.workers_per_sm);
  items *= kv_heads;
  const float mean = static_cast<float>(totals.decode_tokens) * kv_heads / items;
  const float reading = ceilf(items / sms) * mean * share;
  const float waves = ceilf(items / workers);
  const float longest = static_cast<float>(split_tokens) * share + kItemTokens;
  float cost = fmaxf(reading + waves * kItemTokens, longest);
  if (partial_rows > 0) cost += kMergeTokens;
  // Without any split nothing is merged, so that the first candidate always fits.
  if (static_cast<long long>(partial_rows) * p.kv_heads > partial_rows_left) cost = kImpossible;

  // The cheapest. Costs are positive: their bits are in their order.
  const float least = __uint_as_float(__reduce_min_sync(kAll, __float_as_uint(cost)));
  const int best = __ffs(static_cast<int>(__ballot_sync(kAll, cost == least))) - 1;
  return __shfl_sync(kAll, least < kImpossible ? split_tokens : kMostInt, best);
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
