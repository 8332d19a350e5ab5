// The warp of the Hopper decode kernel that finds the pieces of work, and loads their queries, and
// their keys and values where boxes bring them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_keys.cuh"
#include "src/ops/paged_attention/cuda/line.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Rows that are computed for a tile of so many.
__device__ __forceinline__ int ComputedRows(int rows) {
  if constexpr (kWide) return rows <= 16 ? 16 : 32;
  return rows <= 8 ? 8 : 16;
}

// Starts to copy the queries of a piece, by kThreads threads, and announces them. Rows that do not
// exist become zeros.
template <int kThreads>
__device__ __forceinline__ void LoadQueries(const Params& p, DecodeMemory& shared, const Tile& tile,
                                            const Place<DecodeMemory::kSlots>& slot, int thread) {
  constexpr int kOfRow = kThreads / 16;
#pragma unroll 1
  for (int row = thread / kOfRow; row < ComputedRows(tile.num_rows); row += 16) {
    const bool exists = row < tile.num_rows;
    const Query* from = static_cast<const Query*>(p.query);
    if (exists) from += QueryRow(p, tile, row) * kHeadDim;
#pragma unroll
    for (int i = thread % kOfRow; i < kHeadDim / 8; i += kOfRow) {
      const unsigned place =
          kWide ? PlaceInTile(row, i) : row * DecodeMemory::kQueryStride + i * 16;
      CopyAsync<16>(SharedAddress(shared.queries[slot.index]) + place, from + i * 8, exists);
    }
  }
  ArriveCopied(At(shared.queries_full, slot));
}

// Whether a block finds the line by itself, so that its first keys do not wait for the schedule,
// unless there is work for prefill too: there are no more sequences than threads.
__device__ __forceinline__ bool HasOwnLine(const Params& p) {
  return p.own_work != 0 && p.max_seqs <= decltype(DecodeMemory::own)::kSeqs;
}

// A thread's sequence, by all threads; what they find is there after a barrier. The launch has not
// waited for the one before, so that the L1 may hold what an earlier call read: lengths are read
// past it, and one thread empties it for what is read behind the barrier.
__device__ __forceinline__ void FindOwnLine(const Params& p, DecodeMemory& shared) {
  const int seq = static_cast<int>(threadIdx.x), lane = seq % 32;
  WarpSequences of_warp = {0, 0, p.tokens, 0};
  if (seq == kDecodeThreads - 33) __threadfence();  // the next warp makes the barriers
  if (seq - lane < p.max_seqs) {
    const int at = min(seq, p.max_seqs - 1);
    const int begin = __ldcg(p.query_start_loc + at);
    const int end = __ldcg(p.query_start_loc + at + 1);
    const int context = __ldcg(p.context_lens + at);
    const int num_seqs = min(max(__ldcg(p.num_seqs), 0), p.max_seqs);
    if (seq == 0) shared.own.num_seqs = num_seqs;
    const bool valid = seq < num_seqs && AreValid(p, begin, end, context);
    const LaneSequence found = FindSequences(p, valid, begin, end, context);
    shared.own.infos[seq] = found.info;
    of_warp = {__shfl_sync(kAllLanes, found.info.line_end, 31),
               __shfl_sync(kAllLanes, found.end, 31),
               __reduce_min_sync(kAllLanes, found.info.query_len > 0 ? begin : p.tokens),
               __reduce_add_sync(kAllLanes, found.info.query_len)};
    const bool others = found.info.query_len * p.group_size > p.decode_max_rows;
    if (found.contested || __any_sync(kAllLanes, others)) of_warp.begin = -1;
  }
  if (lane == 0) shared.own.warps[seq / 32] = of_warp;
}

struct Loader {
  const Params& p;
  DecodeMemory& shared;
  KeyBoxes boxes;  // where kBoxes
  const int lane = threadIdx.x % 32;
  Place<DecodeMemory::kSlots> slot = {};
  Place<DecodeMemory::kSlots> last = {DecodeMemory::kSlots - 1, 1};  // handed over, or none

  // Hands a piece to the other warps, and then loads the keys of the one before: so this one's
  // pages, and the next piece, are found meanwhile.
  __device__ __forceinline__ void Take(const Tile& tile, unsigned* arrivals, bool bad = false) {
    const int first_key = tile.key_begin / kSplitTokens * kSplitTokens;
    const int stages =
        tile.key_end > tile.key_begin
            ? (tile.key_end - first_key + DecodeMemory::kStageKeys - 1) / DecodeMemory::kStageKeys
            : 0;
    // Clusters for few sequences are launched behind it.
    const bool waits = (kClusterBlocks == 0 || kManySeqs) && p.appended != 0;
    KeyBoxes::Piece next;
    if constexpr (kBoxes) {
      next = boxes.Look(tile, slot.index, first_key, stages);
      if (waits && is_first) boxes.Prefetch(next);
    }
    Wait(At(shared.slot_empty, slot), slot.parity ^ 1);
    DecodeSlot& to = shared.slots[slot.index];
    if constexpr (!kWritersLoadQueries) LoadQueries<32>(p, shared, tile, slot, lane);
    if (lane == 0) {
      to.tile = tile;
      to.first_key = first_key;
      to.stages = stages;
      to.arrivals = arrivals;
      to.stop = 0;
      to.bad = bad;
    }
    if (waits) WaitForLaunchesBefore();
    HandOver();
    if constexpr (kBoxes) {
      boxes.Load();
      boxes.piece = next;
      if (is_first) boxes.Load(DecodeMemory::kStages);
      is_first = false;
    }
  }
  // No piece was taken, the ring is empty: the first keys do not wait until another piece is found.
  bool is_first = kClusterBlocks > 0;

  __device__ __forceinline__ void HandOver() {
    if (lane == 0) Arrive(At(shared.slot_full, slot));
    last = slot;
    slot.Next();
  }

  // Until the piece that was handed over last is being loaded: others may take what follows.
  __device__ __forceinline__ void WaitUntilBegun() const {
    Wait(At(shared.begun, last), last.parity);
  }

  // The keys of the piece that was handed over last.
  __device__ __forceinline__ void LoadKeys() {
    if constexpr (kBoxes) boxes.Load();
  }

  // Sequences [first_seq, first_seq + 32), one a lane.
  SequenceInfo info = {};
  LinePart part = {};
  int first_seq = 0;
  int lane_seq = lane;  // where kManySeqs: which one the lane has
  // Where the line is this block's own: its length up to the end of the lane's warp's sequences.
  bool own = false;
  int own_end = 0;
  __device__ __forceinline__ SequenceInfo Sequence(int first, int count) const {
    const int seq = first + lane;
    int before = 0;
    if (own && first > 0) before = __shfl_sync(kAllLanes, own_end, first / 32 - 1);
    if (seq >= count) return {0, 0, 0, 0x7fffffff};
    SequenceInfo of = own ? shared.own.infos[seq] : p.sequences[seq];
    of.line_end += before;
    return of;
  }
  __device__ __forceinline__ void LookAt(int seq, const SequenceInfo& of_lane) {
    first_seq = seq;
    info = of_lane;
    part = LinePartOf(p, info);
  }

  // All tiles, or parts of them, that lie in one of the line's ranges.
  __device__ __forceinline__ void LoadRange(int range, const LineCuts& cuts, int num_seqs,
                                            int head) {
    const int begin = cuts.Begin(range), end = cuts.End(range);
    // The sequence at the range's begin: the first that ends behind it.
    int low = 0, count = num_seqs;
    if (own) {
      low = 32 * (__ffs(static_cast<int>(__ballot_sync(kAllLanes, own_end > begin))) - 1);
      count = 32;
    }
    while (count > 32) {
      const int step = (count + 31) / 32;
      const int last = min(low + (lane + 1) * step, low + count) - 1;
      const unsigned behind = __ballot_sync(kAllLanes, p.sequences[last].line_end > begin);
      const int of = __ffs(static_cast<int>(behind)) - 1;
      const int last_end = low + count;
      low += of * step;
      count = min(step, last_end - low);
    }
    if (low != first_seq) LookAt(low, Sequence(low, num_seqs));
    int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, info.line_end > begin))) - 1;
    const auto from = [&](int x) { return __shfl_sync(kAllLanes, x, at); };
    while (first_seq + at < num_seqs) {
      const LinePart of = {from(part.tiles), from(part.first_block), from(part.blocks),
                           from(part.tile_length)};
      const SequenceInfo seq = {from(info.query_begin), from(info.query_len),
                                from(info.context_len), from(info.line_end)};
      const int first = seq.line_end - of.Length();
      if (first >= end) return;
      const int number = kManySeqs ? from(lane_seq) : first_seq + at;
      int tile = of.tiles > 1 && first < begin ? (begin - first) / of.tile_length : 0;
      for (; tile < of.tiles; ++tile) {
        const int place = first + tile * of.tile_length;
        if (place >= end) return;
        LoadTile(seq, of, number, tile, place, range, cuts, head);
      }
      if (++at == 32) {
        LookAt(first_seq + 32, Sequence(first_seq + 32, num_seqs));
        at = 0;
      }
    }
  }

  // The part of a tile, which begins at `place`, in the range.
  __device__ __forceinline__ void LoadTile(const SequenceInfo& info, const LinePart& of, int seq,
                                           int index, int place, int range, const LineCuts& cuts,
                                           int head) {
    const int begin = cuts.Begin(range), end = cuts.End(range);
    const int from = max(begin - place, 0), to = min(end - place, of.blocks);
    if (from > 0 && from >= to) return;  // of the tile only its end
    Tile tile;
    tile.kind = kDecodeItem;
    tile.seq = seq;
    tile.query_begin = info.query_begin;
    tile.first_row = index * kLineRows;
    tile.num_rows = min(kLineRows, info.query_len * p.group_size - tile.first_row);
    tile.rows = PartRows(p);
    tile.first_pos = info.context_len - info.query_len;
    const Keys keys = KeysOf(p, info, tile.first_row, tile.num_rows);
    tile.key_begin = max(keys.begin, (of.first_block + from) * kSplitTokens);
    tile.key_end = max(tile.key_begin, min(keys.end, (of.first_block + to) * kSplitTokens));
    const auto range_of = [&](int place) {
      if (place >= begin && place < end) return range;
      if constexpr (kClusterBlocks > 0) {  // no more than 32
        return __popc(__ballot_sync(kAllLanes, place >= cuts.End(lane)));
      }
      return cuts.Of(place);
    };
    const int first = range_of(place);
    tile.split = range - first;
    tile.splits = range_of(place + max(of.blocks, 1) - 1) - first + 1;
    // Tiles that are split begin in different ranges, and end before, or in, the next one's first:
    // of twice as many places as there are ranges each has its own.
    tile.partial_begin = p.line_partials + 2 * first * p.kv_heads * tile.rows - tile.first_row;
    tile.head = head;
    tile.again = 0;
    // Other tiles of the sequence may see keys that this one does not.
    bool bad = false;
    if (of.tiles > 1) {
      const int seen = p.window == 0 ? 0 : max(0, tile.first_pos - p.window + 1);
      bad = HasBadPage(seq, max(seen, (of.first_block + from) * kSplitTokens), tile.key_begin) ||
            HasBadPage(seq, tile.key_end,
                       min(info.context_len, (of.first_block + to) * kSplitTokens));
    }
    unsigned* arrivals = nullptr;
    if constexpr (kClusterBlocks == 0)
      arrivals = p.arrivals + p.line_partials + first * p.kv_heads + head;
    Take(tile, arrivals, bad);
  }

  // Whether a page of keys [begin, end) of a sequence is out of range.
  __device__ __forceinline__ bool HasBadPage(int seq, int begin, int end) const {
    bool bad = false;
    const int pages = end > begin ? PageIndex(p, end - 1) + 1 : 0;
#pragma unroll 1
    for (int i = PageIndex(p, begin) + lane; i < pages; i += 32) {
      bad |= !IsPage(p, LoadIndex(p.block_tables + static_cast<long long>(seq) * p.max_pages + i));
    }
    return __any_sync(kAllLanes, bad);
  }

  // The work of all blocks.
  struct Work {
    int num_seqs;
    int line;  // its length, 0: there are items
    LineRanges ranges;
    unsigned items;
    unsigned blocks;
    int has_fills;
  };

  // From what the block's threads found; false if that does not do.
  __device__ __forceinline__ bool FindOwnWork(Work& work) {
    if (!HasOwnLine(p)) return false;
    constexpr int kWarps = kDecodeThreads / 32;
    WarpSequences of = {0, 0, p.tokens, 0};
    if (lane < kWarps) of = shared.own.warps[lane];
    own_end = of.line;
    const int before = ScanLanes(of.end, own_end);
    work.line = __shfl_sync(kAllLanes, own_end, 31);
    // Launches behind this one may begin when it has waited for the schedule, so some block must.
    own = !__any_sync(kAllLanes, before > of.begin) && (p.line_only != 0 || work.line > 0);
    work.num_seqs = shared.own.num_seqs;
    work.ranges = RangesOf(p, max(p.decode_ranges, 1), work.line, work.num_seqs);
    work.blocks = static_cast<unsigned>(p.decode_workers);
    work.has_fills = p.line_only != 0 && __reduce_add_sync(kAllLanes, of.tokens) < p.tokens;
    first_seq = -1;
    is_first = own && !kWide;
    return own;
  }

  // From the schedule.
  __device__ __forceinline__ void ReadWork(Work& work) {
    WaitForLaunchesBefore();
    LetNextLaunchBegin();  // not before: prefill does not wait for the schedule
    const SequenceInfo early = Sequence(0, p.max_seqs);  // beside the header, not after it
    const WorkHeader header = *p.header;
    work = {.num_seqs = static_cast<int>(header.num_seqs),
            .line = header.line,
            .ranges = header.ranges,
            .items = p.line_only != 0 ? header.num_items : 0,
            .blocks = header.decode_blocks,
            .has_fills = header.has_fills};
    LookAt(0, lane < work.num_seqs ? early : Sequence(0, 0));
  }

  __device__ __forceinline__ void Run() {
    Work work = {};
    if (!FindOwnWork(work)) {
      ReadWork(work);
    } else if (p.line_only != 0) {
      LetNextLaunchBegin();
    }
    if (lane == 0) shared.has_fills = work.has_fills;
    const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
    const bool works = blockIdx.x < work.blocks;
    const LineCuts cuts(work.ranges);
    if constexpr (kBoxes) {
      // No prefill beside them, a unit each, and tiles whose ends are little beside their keys.
      const unsigned units = static_cast<unsigned>(cuts.ranges) * kv_heads;
      const bool alone = work.blocks == static_cast<unsigned>(p.decode_workers);
      if (alone && units <= work.blocks && work.line / 16 >= work.num_seqs) boxes.paced = units;
    }
    for (unsigned unit = blockIdx.x; works;) {
      const unsigned at = unit / kv_heads;
      const int head = static_cast<int>(unit - at * kv_heads);
      if (work.line > 0) {
        if (at >= static_cast<unsigned>(cuts.ranges)) break;
        LoadRange(static_cast<int>(at), cuts, work.num_seqs, head);
      } else if (at >= work.items) {
        break;
      } else if (p.items[at].kind == kDecodeItem) {
        Take(Tile{p.items[at], head, 0}, nullptr);
      }
      WaitForLaunchesBefore();  // the schedule sets the counter
      LetNextLaunchBegin();
      if constexpr (!kBoxes) WaitUntilBegun();
      unsigned next = 0;
      if (lane == 0) next = atomicAdd(&p.header->next_unit, 1u);
      LoadKeys();
      unit = __shfl_sync(kAllLanes, next, 0);
    }
    Stop();
  }

  __device__ __forceinline__ void Stop() {
    Wait(At(shared.slot_empty, slot), slot.parity ^ 1);
    if (lane == 0) shared.slots[slot.index].stop = 1;
    HandOver();
  }
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_
