// paged_attention, first launch: from the lengths, which only the device knows, to a list of work.
//
// One block. It validates each sequence's lengths, decides which rows are whose, how the key ranges
// are split so that all workers are busy to the end, and writes the items. The list of the long
// prefill items comes first, longest first within a sequence: workers take items as they get free.
// Those that read the copy are read from the last to the first.
//
// Every step waits for the one before, so that what counts is latency: a warp adds up by itself,
// warps exchange their sums through one barrier, and what all warps need each of them computes.
//
// Defines: SCHEDULE_THREADS, a multiple of 32, as many sequences are looked at side by side;
// LINE_ONLY, 1 where the decode launch does all work (Params::line_only): most of this is left out.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_

#include "src/cuda/ptx.cuh"
#include "src/ops/paged_attention/cuda/contested.cuh"

namespace xla_gpu::paged_attention {
namespace {

__device__ __forceinline__ Totals AddUpWarp(const Totals& x) {
  const auto add_up = [](const Work& work) {
    if constexpr (kLineOnly) return Work{};
    const int most = WarpMax(work.max_keys);
    return Work{WarpSum(work.tokens), WarpSum(work.tiles), most,
                WarpMax(work.max_keys == most ? work.longest_tiles : 0)};
  };
  return {add_up(x.decode), add_up(x.prefill), WarpSum(x.owned_tokens), WarpSum(x.line),
          WarpMax(x.order)};
}

// From what the threads found to the totals of the block, for all threads.
__device__ __forceinline__ Totals AddUp(Totals x, Totals* of_warps) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    x = AddUpWarp(x);
    if (round == 1) break;
    if (lane == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane < kScheduleWarps ? of_warps[lane] : Totals{};
  }
  return x;
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

// What the block knows of the sequences that it looks at side by side.
struct Chunk {
  SequenceInfo infos[kScheduleThreads];
  // Of the items of all sequences up to this one.
  int decode_end[kScheduleThreads];
  int prefill_end[kScheduleThreads];
  int copied_end[kScheduleThreads];
  int splits[kScheduleThreads];
  int partial_begin[kScheduleThreads];
};

// From the lengths of all sequences to their SequenceInfo (those of the first kScheduleThreads also
// in `infos`, after a barrier) and this thread's part of the totals. `first`: the lengths of its
// sequence among those.
__device__ __forceinline__ Totals ReadSequences(const Params& p, const Lengths& first, int num_seqs,
                                                SequenceInfo* infos, int* warp_ends,
                                                int* warp_lines) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Totals totals = {};
  int owned = 0;  // end of the rows that belong to valid sequences before this chunk
  int line = 0;   // the line's length before this chunk, or the copy's
  const bool has_places = p.decode_ranges > 0 || p.copy_capacity > 0;
#pragma unroll 1
  for (int base = 0; base < num_seqs; base += kScheduleThreads) {
    // Read and check.
    const int s = base + static_cast<int>(threadIdx.x);
    const bool used = s < num_seqs;
    const Lengths lengths = base == 0 ? first : ReadLengths(p, s);
    const int begin = lengths.begin, end = lengths.end, context = lengths.context;
    const bool valid = used && AreValid(p, begin, end, context);
    // The greatest end so far, this sequence's included, and before it.
    int inclusive = valid ? end : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, inclusive, step);
      if (lane >= step) inclusive = Max(inclusive, other);
    }
    int before = __shfl_up_sync(kAllLanes, inclusive, 1);
    if (lane == 0) before = 0;
    SequenceInfo info = {};
    if (valid) info = {begin, end - begin, context, 0};

    // The place on the line, or in the copy, in the warp.
    int line_end = 0, length = 0;
    if (has_places) {
      length = p.decode_ranges > 0 ? LinePartOf(p, info).Length()
                                   : Min(CopyPartOf(p, info).tokens, p.copy_capacity + 1);
      line_end = length;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, line_end, step);
        if (lane >= step) line_end += other;
      }
    }

    // Add what the warps before have.
    if (base > 0) __syncthreads();  // those of the chunk before are read
    if (lane == 31) warp_ends[warp] = inclusive, warp_lines[warp] = line_end;
    __syncthreads();
    const int warp_end = lane < kScheduleWarps ? warp_ends[lane] : 0;
    const int before_warp = Max(owned, WarpMax(lane < warp ? warp_end : 0));
    inclusive = Max(inclusive, before_warp);
    before = Max(before, before_warp);
    owned = Max(owned, WarpMax(warp_end));
    if (has_places) {
      const int of_warp = lane < kScheduleWarps ? warp_lines[lane] : 0;
      info.line_end = line + WarpSum(lane < warp ? of_warp : 0) + line_end;
      line += WarpSum(of_warp);
      if (p.copy_capacity > 0) {  // what does not fit ends beyond it, however often
        line = Min(line, p.copy_capacity + 1);
        if (info.line_end > p.copy_capacity) length = 0;
      }
      totals.line += length;
    }
    if (!used) continue;

    // Add it to the totals.
    if (valid) {
      if (begin < end && before > begin) totals.order = kContested;
      totals.owned_tokens += info.query_len;
      Shape shape = {};
      if constexpr (!kLineOnly) shape = ShapeOf(p, info);
      const Work own = WorkOf(p, info, shape);
      const auto add = [&](Work& work) {
        work.tokens += own.tokens;
        work.tiles += own.tiles;
        if (own.max_keys >= work.max_keys) {
          work.max_keys = own.max_keys;
          work.longest_tiles = own.longest_tiles;
        }
      };
      shape.decode ? add(totals.decode) : add(totals.prefill);
    } else {
      totals.order = Max(totals.order, kSomeInvalid);
    }

    // Record it.
    if (base == 0) infos[s] = info;
    p.sequences[s] = info;
    p.owner_end[s] = inclusive;
    p.state[s] = valid ? kValid : kInvalid;
  }
  return totals;
}

// The entry of `ends` (an inclusive prefix sum) that holds `index`.
__device__ __forceinline__ int FindOwner(const int* ends, int count, int index) {
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

// What a thread's sequence, or several sequences, put in the lists.
struct Demand {
  int decode_items;
  int prefill_items;  // but for the copied ones
  int copied_items;
  int partial_rows;
};

__device__ __forceinline__ Demand operator+(const Demand& a, const Demand& b) {
  return {a.decode_items + b.decode_items, a.prefill_items + b.prefill_items,
          a.copied_items + b.copied_items, a.partial_rows + b.partial_rows};
}

__device__ __forceinline__ Demand WarpSum(const Demand& x) {
  return {WarpSum(x.decode_items), WarpSum(x.prefill_items), WarpSum(x.copied_items),
          WarpSum(x.partial_rows)};
}

// Gives each sequence its splits and its place among the partial results, and writes the items.
__device__ __forceinline__ unsigned WriteItems(const Params& p, const Totals& totals,
                                               const Splits& chosen, int num_seqs, Demand* of_warps,
                                               Chunk& chunk, int& num_merges,
                                               unsigned& num_copied) {
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int prefill_items = chosen.prefill.items;
  Demand done = {prefill_items, 0, 0, 0};  // decode items come last
#pragma unroll 1
  for (int base = 0; base < num_seqs; base += kScheduleThreads) {
    const int s = base + tid;
    if (base > 0) {
      __syncthreads();  // the items of the chunk before are written
      if (s < num_seqs) chunk.infos[tid] = p.sequences[s];
    }

    // What the sequence needs.
    int splits = 1;
    Demand own = {};
    if (s < num_seqs) {
      const Shape shape = ShapeOf(p, chunk.infos[tid]);
      if (shape.tiles > 0) {
        splits = SplitsOf(p, shape, shape.decode ? chosen.decode.tokens : chosen.prefill.tokens);
        (shape.decode   ? own.decode_items
         : shape.copied ? own.copied_items
                        : own.prefill_items) = shape.tiles * splits;
        if (splits > 1) own.partial_rows = shape.rows * p.kv_heads * splits;
      }
    }

    // Its places: behind all sequences before.
    Demand sum = own;  // of the warp's sequences up to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const Demand other = {__shfl_up_sync(kAllLanes, sum.decode_items, step),
                            __shfl_up_sync(kAllLanes, sum.prefill_items, step),
                            __shfl_up_sync(kAllLanes, sum.copied_items, step),
                            __shfl_up_sync(kAllLanes, sum.partial_rows, step)};
      if (lane >= step) sum = sum + other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    const Demand of_warp = lane < kScheduleWarps ? of_warps[lane] : Demand{};
    sum = sum + WarpSum(lane < warp ? of_warp : Demand{});
    const Demand total = WarpSum(of_warp);
    chunk.decode_end[tid] = sum.decode_items;
    chunk.prefill_end[tid] = sum.prefill_items;
    chunk.copied_end[tid] = sum.copied_items;
    chunk.splits[tid] = splits;
    chunk.partial_begin[tid] = done.partial_rows + sum.partial_rows - own.partial_rows;
    __syncthreads();

    // Write the items.
    const int count = Min(kScheduleThreads, num_seqs - base);
    const int prefill = total.prefill_items + total.copied_items;
#pragma unroll 1
    for (int i = tid; i < prefill + total.decode_items; i += kScheduleThreads) {
      const bool decode = i >= prefill, copied = !decode && i >= total.prefill_items;
      const int in_list = i - (decode ? prefill : copied ? total.prefill_items : 0);
      const int* ends = decode ? chunk.decode_end : copied ? chunk.copied_end : chunk.prefill_end;
      const int owner = FindOwner(ends, count, in_list);
      const SequenceInfo info = chunk.infos[owner];
      const WorkItem item =
          MakeItem(p, base + owner, info, ShapeOf(p, info), ends[owner] - 1 - in_list,
                   chunk.splits[owner], chunk.partial_begin[owner]);
      const int place = copied ? prefill_items - 1 - done.copied_items - in_list
                               : (decode ? done.decode_items : done.prefill_items) + in_list;
      p.items[place] = item;
      if (item.splits > 1 && item.split == 0) {  // one of the tile's items for all of them
        const bool behind = copied || (!decode && p.copied_only == 0);  // attend merges it
        if (behind) p.merges[atomicAdd(&num_merges, 1)] = place;
        unsigned* arrivals = p.arrivals + item.partial_begin + item.first_row;
#pragma unroll 1
        for (int head = 0; head < p.kv_heads; ++head) {
          arrivals[static_cast<long long>(head) * item.splits * item.rows] = 0;
        }
      }
    }
    done = done + total;
  }
  num_copied = static_cast<unsigned>(done.copied_items);
  return static_cast<unsigned>(totals.owned_tokens < p.tokens ? WriteFills(p, done.decode_items)
                                                              : done.decode_items);
}

// Who does what. Beside prefill decode has its share of the multiprocessors, so that both end
// together, and memory and tensor cores are both busy.
struct Shares {
  int prefill_workers;
  int decode_blocks;
  int decode_ranges;  // of the line, at most
};

__device__ __forceinline__ Shares ShareOut(const Params& p, const Totals& totals) {
  if (p.decode_ranges == 0 || kLineOnly || p.prefill_launch == 0 || totals.prefill.tiles == 0) {
    return {p.prefill_workers, p.decode_workers, p.decode_ranges};
  }
  if (totals.line == 0) return {p.prefill_workers, 0, p.decode_ranges};
  // The time of a block of the line, in tiles of 128 x 128.
  const float line_block = p.line_rows > kDecodeTileRows ? 0.45f : 0.3f;
  const int together = p.decode_workers / p.prefill_workers;  // blocks of a cluster of prefill
  const float rows = static_cast<float>(Max(p.prefill_tile_rows, 128));  // 64 take as long
  const float tiles = static_cast<float>(totals.prefill.tokens) / 128.0f * (rows / 128.0f);
  const float blocks = static_cast<float>(totals.line) * line_block;
  const float wanted =
      __fdividef(blocks, fmaxf(blocks + tiles, 1e-6f)) * static_cast<float>(p.decode_workers);
  // As many ranges as make equal work for about so many blocks.
  const float kv_heads = static_cast<float>(p.kv_heads);
  const int ranges =
      Min(Max(static_cast<int>(rintf(__fdividef(wanted, kv_heads))), 1), p.decode_ranges);
  const int units = ranges * p.kv_heads;
  const float units_a_block = __fdividef(static_cast<float>(units), fmaxf(wanted, 1.0f));
  const int decode =
      Min(CeilDiv(units, Max(static_cast<int>(rintf(units_a_block)), 1)), p.decode_workers);
  // Prefill is cut for twice as many as are left: of longer pieces the last to begin, where decode
  // ends late, would hold up the call.
  const int left = 2 * (p.decode_workers - decode) / together;
  return {Max(left, 1), decode, ranges};
}

// What blocks read beside the header, which says that it is nothing: a piece each behind the last
// item, and a warp's sequences.
__device__ __forceinline__ void WriteReadAhead(const Params& p, int num_items, int num_seqs) {
  const int tid = threadIdx.x;
  if constexpr (!kLineOnly) {
    const int ahead = CeilDiv(Max(p.workers, p.prefill_workers), p.kv_heads);
    const int end = Min(num_items + ahead, p.item_capacity);
#pragma unroll 1
    for (int i = num_items + tid; i < end; i += kScheduleThreads) p.items[i] = {};
  }
  if (num_seqs <= tid && tid < Min(p.max_seqs, 32)) p.sequences[tid] = {};
}

// All of it, by one block of kScheduleThreads.
__device__ __forceinline__ void Schedule(const Params& p) {
  // Blocks that find their first piece do not wait for this launch, nor for what stands before it.
  const bool early = kLineOnly || p.own_work == 0;
  if (early) LetNextLaunchBegin();
  if constexpr (!kLineOnly) {  // that one is launched behind the end of what stands before it
    TouchParams(p);
    WaitForLaunchesBefore();
  }
  if (!early) LetNextLaunchBegin();
  __shared__ Chunk chunk;
  __shared__ Counts counts;
  __shared__ int warp_ends[kScheduleWarps];
  __shared__ int warp_lines[kScheduleWarps];
  __shared__ Totals warp_totals[kScheduleWarps];
  __shared__ Demand warp_demands[kScheduleWarps];
  __shared__ int num_merges;
  if (threadIdx.x == 0) num_merges = 0;

  // Look at the sequences.
  const Lengths first = ReadLengths(p, threadIdx.x);  // beside num_seqs, not after it
  const int num_seqs = Min(Max(p.num_seqs[0], 0), p.max_seqs);
  const Totals totals =
      AddUp(ReadSequences(p, first, num_seqs, chunk.infos, warp_ends, warp_lines), warp_totals);

  // Share out the work.
  const Shares shares = ShareOut(p, totals);
  unsigned num_items = 0, num_prefill_items = 0, num_copied = 0;
  int line = 0, copied_tokens = 0;
  if (totals.order == kContested) {
    num_items = WriteContested(p, num_seqs);
  } else if constexpr (!kLineOnly) {
    if (p.copy_capacity > 0) copied_tokens = totals.line;
    const int workers = copied_tokens > 0 ? p.copied_workers : shares.prefill_workers;
    const bool launch = p.prefill_launch != 0 && (p.copied_only == 0 || copied_tokens > 0);
    const Splits chosen = ChooseSplits(p, totals, launch, workers, num_seqs, chunk.infos, counts);
    num_items =
        WriteItems(p, totals, chosen, num_seqs, warp_demands, chunk, num_merges, num_copied);
    num_prefill_items = static_cast<unsigned>(chosen.prefill.items);
    __syncthreads();  // all merges are counted
  }

  if (p.decode_ranges > 0 && totals.order != kContested) {
    line = totals.line;
    for (int i = threadIdx.x; i < p.decode_ranges * p.kv_heads; i += kScheduleThreads) {
      p.arrivals[p.line_partials + i] = 0;
    }
  }

  WriteReadAhead(p, static_cast<int>(num_items), num_seqs);
  if (threadIdx.x == 0) {
    *p.header = {
        .num_items = num_items,
        .next_item = static_cast<unsigned>(p.workers),
        .num_seqs = static_cast<unsigned>(num_seqs),
        .order = totals.order,
        .any_bad_page = 0,
        .blocks_done = 0,
        .num_prefill_items = num_prefill_items,
        .next_prefill = static_cast<unsigned>(p.decode_ranges > 0 ? 0 : p.prefill_workers),
        .num_redo = 0,
        .num_merges = static_cast<unsigned>(num_merges),
        .num_copied = num_copied,
        .next_copied = static_cast<unsigned>(p.copied_workers),
        .copied_tokens = copied_tokens,
        .line = line,
        .ranges = line > 0 ? RangesOf(p, shares.decode_ranges, line, num_seqs) : LineRanges{},
        .decode_blocks = static_cast<unsigned>(shares.decode_blocks),
        .next_unit = static_cast<unsigned>(shares.decode_blocks),
        .turns = 0,
        .has_fills = kLineOnly && (totals.order == kContested || totals.owned_tokens < p.tokens)};
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SCHEDULE_CUH_
