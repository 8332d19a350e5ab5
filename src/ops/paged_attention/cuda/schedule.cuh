// paged_attention, first launch: from the lengths, which only the device knows, to a list of work.
//
// One block. It validates each sequence's lengths, decides which rows are whose, how the key ranges
// are split so that all workers are busy to the end, and writes the items. The list of the long
// prefill items comes first, longest first within a sequence: workers take items as they get free.
//
// Defines: SCHEDULE_THREADS, a multiple of 32; as many sequences are looked at side by side.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kScheduleThreads = SCHEDULE_THREADS;
constexpr int kWarps = kScheduleThreads / 32;
constexpr int kCandidates = 32;  // one a lane
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ int Min(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int Max(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int CeilDiv(int a, int b) { return (a + b - 1) / b; }

struct Sum {
  static __device__ int Combine(int a, int b) { return a + b; }
};
struct Maximum {
  static __device__ int Combine(int a, int b) { return Max(a, b); }
};

// Inclusive scan over the block, of values >= 0. `scratch`: kWarps ints;
// the last one becomes the total.
template <typename Op>
__device__ int BlockScan(int value, int* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value = Op::Combine(value, other);
  }
  __syncthreads();  // the scratch of the scan before is read
  if (lane == 31) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int total = lane < kWarps ? scratch[lane] : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, total, step);
      if (lane >= step) total = Op::Combine(total, other);
    }
    if (lane < kWarps) scratch[lane] = total;
  }
  __syncthreads();
  return warp == 0 ? value : Op::Combine(value, scratch[warp - 1]);
}

struct Totals {
  unsigned long long decode_tokens;  // keys times tiles, over all decode sequences
  unsigned long long prefill_rows;
  int decode_tiles;
  int decode_max_span;
  int prefill_tiles;
  int prefill_max_span;
  int owned_tokens;
  unsigned any_invalid;
};

// How the key ranges are cut.
struct Splits {
  int decode_tokens;  // most tokens of one decode item
  int prefill;        // pieces of each prefill tile
};

// What a sequence asks for.
struct Shape {
  int rows;       // of all its query tokens
  int first_row;  // the first of them that is its own
  int tiles;      // over those; 0: no work
  int span;       // keys that some row sees
  bool decode;
};

__device__ Shape ShapeOf(const Params& p, const SequenceInfo& info) {
  Shape shape;
  shape.rows = info.query_len * p.group_size;
  shape.decode = shape.rows <= p.decode_max_rows;
  shape.first_row = info.first_token * p.group_size;
  shape.tiles = CeilDiv(Max(shape.rows - shape.first_row, 0),
                        shape.decode ? kDecodeTileRows : p.prefill_tile_rows);
  const int first_pos = info.context_len - info.query_len + info.first_token;
  const int first_key = p.window == 0 ? 0 : Max(0, first_pos - p.window + 1);
  shape.span = Max(info.context_len - first_key, 1);
  return shape;
}

// The shape of sequence `s`, from `cached` (the first kScheduleThreads sequences) or from the
// workspace.
__device__ Shape ShapeAt(const Params& p, const Shape* cached, int s) {
  if (s < kScheduleThreads) return cached[s];
  if (p.state[s] != kValid) return {};
  return ShapeOf(p, p.sequences[s]);
}

template <typename T>
__device__ T WarpSum(T x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

__device__ int WarpMax(int x) {
  for (int step = 16; step > 0; step /= 2) x = Max(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// Adds each thread's shape to the totals: first within the warp, as atomics on one word are slow.
__device__ void AddUp(const Shape& shape, int owned_tokens, Totals& totals) {
  const bool leader = threadIdx.x % 32 == 0;
  const int owned = WarpSum(owned_tokens);
  if (leader && owned > 0) atomicAdd(&totals.owned_tokens, owned);
  const bool decode = shape.tiles > 0 && shape.decode;
  const bool prefill = shape.tiles > 0 && !shape.decode;
  if (__any_sync(kAll, decode)) {
    const auto tokens = WarpSum(decode ? static_cast<unsigned long long>(shape.span) *
                                             static_cast<unsigned>(shape.tiles)
                                       : 0ull);
    const int tiles = WarpSum(decode ? shape.tiles : 0);
    const int span = WarpMax(decode ? shape.span : 0);
    if (leader) {
      atomicAdd(&totals.decode_tokens, tokens);
      atomicAdd(&totals.decode_tiles, tiles);
      atomicMax(&totals.decode_max_span, span);
    }
  }
  if (__any_sync(kAll, prefill)) {
    const auto rows = WarpSum(prefill ? static_cast<unsigned long long>(shape.rows) : 0ull);
    const int tiles = WarpSum(prefill ? shape.tiles : 0);
    const int span = WarpMax(prefill ? shape.span : 0);
    if (leader) {
      atomicAdd(&totals.prefill_rows, rows);
      atomicAdd(&totals.prefill_tiles, tiles);
      atomicMax(&totals.prefill_max_span, span);
    }
  }
}

struct Lengths {
  int begin;
  int end;
  int context;
};

__device__ __forceinline__ Lengths ReadLengths(const Params& p, int s) {
  if (s >= p.max_seqs) return {};
  return {p.query_start_loc[s], p.query_start_loc[s + 1], p.context_lens[s]};
}

// From the lengths of all sequences to their SequenceInfo (but for the splits) and the totals.
// `first`: the thread's sequence among the first kScheduleThreads.
__device__ void ReadSequences(const Params& p, const Lengths& first, int num_seqs, int* scratch,
                              Totals& totals, Shape* cached) {
  int owned = 0;  // end of the rows that belong to valid sequences before this chunk
  for (int base = 0; base < num_seqs; base += kScheduleThreads) {
    const int s = base + static_cast<int>(threadIdx.x);
    Shape shape = {};
    int owned_tokens = 0;
    const bool used = s < num_seqs;
    const Lengths lengths = base == 0 ? first : ReadLengths(p, s);
    const int begin = lengths.begin, end = lengths.end, context = lengths.context;
    const bool valid = used && begin >= 0 && begin <= end && end <= p.tokens && context >= 0 &&
                       context <= p.max_context && context >= end - begin;
    const int inclusive = Max(owned, BlockScan<Maximum>(valid ? end : 0, scratch));
    // The end before this sequence: its left neighbour's.
    int before = __shfl_up_sync(kAll, inclusive, 1);
    if (threadIdx.x % 32 == 0) {
      before = threadIdx.x == 0 ? owned : Max(owned, scratch[threadIdx.x / 32 - 1]);
    }
    if (used) {
      SequenceInfo info = {};
      info.splits = 1;
      if (valid) {
        info.query_begin = begin;
        info.query_len = end - begin;
        info.context_len = context;
        info.first_token = Min(Max(before - begin, 0), info.query_len);
        owned_tokens = info.query_len - info.first_token;
        shape = ShapeOf(p, info);
        info.tile_rows = shape.decode ? kDecodeTileRows : p.prefill_tile_rows;
        info.kind = shape.decode ? kDecodeItem : kPrefillItem;
      } else {
        totals.any_invalid = 1;
      }
      if (base == 0) cached[s] = shape;
      p.sequences[s] = info;
      p.owner_end[s] = inclusive;
      p.state[s] = valid ? kValid : kInvalid;
    }
    AddUp(shape, owned_tokens, totals);
    owned = Max(owned, scratch[kWarps - 1]);
  }
}

__device__ int DecodeSplits(const Params& p, const Shape& shape, int split_tokens) {
  if (p.batch_invariant) {
    return Min(kInvariantMaxSplits, CeilDiv(shape.span, kInvariantSplitTokens));
  }
  return CeilDiv(shape.span, split_tokens);
}

// Prefill tiles are split only where they are too few to fill the device.
__device__ int ChoosePrefillSplits(const Params& p, const Totals& totals) {
  const long long pieces = static_cast<long long>(totals.prefill_tiles) * p.kv_heads;
  if (p.batch_invariant || pieces == 0 || pieces * 2 > p.workers) return 1;
  const long long rows = static_cast<long long>(totals.prefill_rows) * p.kv_heads;
  int splits = Min(static_cast<int>(p.workers / pieces), Max(1, totals.prefill_max_span / 512));
  splits = Min(splits, static_cast<int>(p.partial_capacity / 4 * 3 / rows));
  return Max(splits, 1);
}

// A candidate for the length of decode items. All are guesses, so that f32 is good enough.
__device__ int CandidateLength(const Params& p, const Totals& totals, int candidate) {
  const float kv_heads = static_cast<float>(p.kv_heads);
  const float workers = static_cast<float>(p.workers);
  const float span = static_cast<float>(totals.decode_max_span);
  float length;
  if (candidate < 8) {  // so many splits of the longest sequence
    length = span / static_cast<float>(candidate + 1);
  } else if (candidate < 16) {  // so many full waves, if all are of one length
    const float pieces = static_cast<float>(totals.decode_tiles) * kv_heads;
    length = span / fmaxf(floorf(static_cast<float>(candidate - 7) * workers / pieces), 1.0f);
  } else {  // so many items a worker
    length = static_cast<float>(totals.decode_tokens) * kv_heads /
             (static_cast<float>(candidate - 15) * workers);
  }
  const int tokens = static_cast<int>(fminf(length, span)) + 1;
  return Max(CeilDiv(Min(tokens, totals.decode_max_span), kSplitTokens), 2) * kSplitTokens;
}

// What each warp has counted for each candidate.
struct Counts {
  long long items[kWarps][kCandidates];
  long long partial_rows[kWarps][kCandidates];
};

// The candidate that ends soonest, one a lane; each warp counts the items of some sequences. The
// unit of the estimate is what a worker reads of one token; workers share their SM's bandwidth, and
// one alone has all of it.
__device__ int ChooseDecodeSplit(const Params& p, const Totals& totals, int num_seqs,
                                 long long partial_rows_left, const Shape* cached, Counts& counts,
                                 int* chosen) {
  constexpr float kItemTokens = 128;  // what starting and ending an item costs
  constexpr float kMergeTokens = 64;  // what merging splits costs
  constexpr float kImpossible = 3.0e38f;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split_tokens = CandidateLength(p, totals, lane);
  long long items = 0, partial_rows = 0;
  for (int s = warp; s < num_seqs; s += kWarps) {
    const Shape shape = ShapeAt(p, cached, s);
    if (!shape.decode || shape.tiles == 0) continue;
    const int splits = CeilDiv(shape.span, split_tokens);
    items += static_cast<long long>(splits) * shape.tiles;
    if (splits > 1) partial_rows += static_cast<long long>(splits) * shape.rows;
  }
  counts.items[warp][lane] = items;
  counts.partial_rows[warp][lane] = partial_rows;
  __syncthreads();
  if (warp == 0) {
    items = partial_rows = 0;
    for (int w = 0; w < Min(kWarps, num_seqs); ++w) {
      items += counts.items[w][lane];
      partial_rows += counts.partial_rows[w][lane];
    }
    items *= p.kv_heads;
    const int sms = p.workers / p.workers_per_sm;
    const float tokens = static_cast<float>(totals.decode_tokens) * static_cast<float>(p.kv_heads);
    const float mean = items > 0 ? tokens / static_cast<float>(items) : 0.0f;
    const float share = 1.0f / static_cast<float>(p.workers_per_sm);
    const float reading = static_cast<float>((items + sms - 1) / sms) * mean * share;
    const float waves = static_cast<float>((items + p.workers - 1) / p.workers);
    const float longest = static_cast<float>(split_tokens) * share + kItemTokens;
    float cost = fmaxf(reading + waves * kItemTokens, longest);
    if (partial_rows > 0) cost += kMergeTokens;
    // Without any split nothing is merged, so that the first candidate always fits.
    if (partial_rows * p.kv_heads > partial_rows_left) cost = kImpossible;
    float least = cost;
    for (int step = 16; step > 0; step /= 2) {
      least = fminf(least, __shfl_xor_sync(kAll, least, step));
    }
    const int best = __ffs(static_cast<int>(__ballot_sync(kAll, cost == least))) - 1;
    if (lane == best) *chosen = least < kImpossible ? split_tokens : 0x7fffff00;
  }
  __syncthreads();
  return *chosen;
}

// The entry of `ends` (an inclusive prefix sum) that holds `index`.
__device__ int FindOwner(const int* ends, int count, int index) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct Chunk {
  int decode_end[kScheduleThreads];
  int prefill_end[kScheduleThreads];
  int splits[kScheduleThreads];
  int first_row[kScheduleThreads];
};

// Gives each sequence its splits and its place among the partial results, and writes the items.
__device__ unsigned WriteItems(const Params& p, const Totals& totals, const Splits& chosen,
                               int num_seqs, const Shape* cached, int* scratch, Chunk& chunk) {
  const int tid = threadIdx.x;
  int prefill_base = 0;
  int decode_base = totals.prefill_tiles * chosen.prefill;
  int partial_base = 0;
  for (int base = 0; base < num_seqs; base += kScheduleThreads) {
    const int s = base + tid;
    Shape shape = {};
    int splits = 1, decode_items = 0, prefill_items = 0, partial_rows = 0;
    if (s < num_seqs) shape = ShapeAt(p, cached, s);
    if (shape.tiles > 0) {
      splits = shape.decode ? DecodeSplits(p, shape, chosen.decode_tokens) : chosen.prefill;
      (shape.decode ? decode_items : prefill_items) = shape.tiles * splits;
      if (splits > 1) partial_rows = shape.rows * p.kv_heads * splits;
    }
    const int decode_end = BlockScan<Sum>(decode_items, scratch);
    const int decode_total = scratch[kWarps - 1];
    const int prefill_end = BlockScan<Sum>(prefill_items, scratch);
    const int prefill_total = scratch[kWarps - 1];
    const int partial_end = BlockScan<Sum>(partial_rows, scratch);
    const int partial_total = scratch[kWarps - 1];
    chunk.decode_end[tid] = decode_end;
    chunk.prefill_end[tid] = prefill_end;
    chunk.splits[tid] = splits;
    chunk.first_row[tid] = shape.first_row;
    if (splits > 1) {
      const int partial_begin = partial_base + partial_end - partial_rows;
      p.sequences[s].splits = splits;
      p.sequences[s].partial_begin = partial_begin;
      const int tile_rows = shape.decode ? kDecodeTileRows : p.prefill_tile_rows;
      for (int head = 0; head < p.kv_heads; ++head) {
        unsigned* arrivals = p.arrivals + partial_begin + head * splits * shape.rows;
        for (int row = shape.first_row; row < shape.rows; row += tile_rows) arrivals[row] = 0;
      }
    }
    __syncthreads();

    const int count = Min(kScheduleThreads, num_seqs - base);
    for (int i = tid; i < prefill_total; i += kScheduleThreads) {
      const int owner = FindOwner(chunk.prefill_end, count, i);
      const int from_end = chunk.prefill_end[owner] - 1 - i;  // the last tile sees most keys
      const int tile = from_end / chunk.splits[owner];
      p.items[prefill_base + i] = {base + owner,
                                   chunk.first_row[owner] + tile * p.prefill_tile_rows,
                                   from_end % chunk.splits[owner], kPrefillItem};
    }
    for (int i = tid; i < decode_total; i += kScheduleThreads) {
      const int owner = FindOwner(chunk.decode_end, count, i);
      const int from_end = chunk.decode_end[owner] - 1 - i;
      const int tile = from_end / chunk.splits[owner];
      p.items[decode_base + i] = {base + owner, chunk.first_row[owner] + tile * kDecodeTileRows,
                                  from_end % chunk.splits[owner], kDecodeItem};
    }
    prefill_base += prefill_total;
    decode_base += decode_total;
    partial_base += partial_total;
    __syncthreads();
  }
  int num_items = decode_base;
  if (totals.owned_tokens < p.tokens) {
    const int fills = CeilDiv(p.tokens, kFillTokens);
    for (int i = tid; i < fills; i += kScheduleThreads) {
      p.items[num_items + i] = {0, i * kFillTokens, 0, kFillItem};
    }
    num_items += fills;
  }
  return static_cast<unsigned>(num_items);
}

// All of it, by one block of kScheduleThreads.
__device__ void Schedule(const Params& p) {
  __shared__ int scratch[kWarps];
  __shared__ int chosen_length;
  __shared__ Totals totals;
  __shared__ union {
    Counts counts;
    Chunk chunk;
  } shared;
  __shared__ Shape cached[kScheduleThreads];

  const Lengths first = ReadLengths(p, threadIdx.x);  // beside num_seqs, not after it
  const int num_seqs = Min(Max(p.num_seqs[0], 0), p.max_seqs);
  if (threadIdx.x == 0) totals = {};
  __syncthreads();
  ReadSequences(p, first, num_seqs, scratch, totals, cached);
  __syncthreads();

  Splits chosen;
  chosen.prefill = ChoosePrefillSplits(p, totals);
  const long long prefill_partial =
      chosen.prefill > 1 ? static_cast<long long>(totals.prefill_rows) * p.kv_heads * chosen.prefill
                         : 0;
  chosen.decode_tokens =
      ChooseDecodeSplit(p, totals, num_seqs, p.partial_capacity - prefill_partial, cached,
                        shared.counts, &chosen_length);
  const unsigned num_items = WriteItems(p, totals, chosen, num_seqs, cached, scratch, shared.chunk);
  if (threadIdx.x == 0) {
    *p.header = {num_items,
                 static_cast<unsigned>(p.workers),
                 static_cast<unsigned>(num_seqs),
                 totals.any_invalid,
                 0,
                 0};
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_
