// The warps of the Hopper prefill kernel that load: pieces of work, queries, keys and values.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_

#include "src/ops/paged_attention/cuda/items.cuh"
#include "src/ops/paged_attention/cuda/non_finite.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Keys and values come from the copy that the launch in front has made (copy.cuh).
inline constexpr bool kCopied = COPIED != 0;
static_assert(!kCopied || (BOXES && !kConverts));

// Blocks of a cluster: each has its rows of a piece, and a copy of all keys and values, of which it
// loads its share for all of them.
inline constexpr int kBlocks = CLUSTER;
static_assert(kBlocks == 1 || (kBlocks == 2 && BOXES && !kConverts));

// This block's among them.
__device__ __forceinline__ int BlockRank() {
  return kBlocks == 1 ? 0 : static_cast<int>(blockIdx.x % kBlocks);
}

// The launch in front is decode: it has let this one begin when the schedule was done, and goes on.
inline constexpr bool kBesideDecode = BESIDE_DECODE != 0;

// Blocks may find their first piece from the lengths (Params::own_work): the schedule lets this
// launch begin when all that stands before it is done, and goes on. What it writes is read, and
// written to, only by threads that have waited for it, or that know a later piece. The last blocks
// begin when it leaves them its multiprocessor: then its list is there.
inline constexpr bool kMayFindFirst = !kBesideDecode && !kConverts && !kCopied;
__device__ __forceinline__ bool FindsFirst(const Params& p) {
  return kMayFindFirst && p.own_work != 0 &&
         static_cast<int>(blockIdx.x / kBlocks) < p.prefill_workers - 1;
}
__device__ __forceinline__ void WaitForSchedule() {
  if constexpr (kMayFindFirst) WaitForLaunchesBefore();
}

// The warp that loads keys wants another piece before it loads the last tiles of one: early enough
// for the next queries and keys to be there in time, and so late that the blocks that end first
// take the last pieces.
inline constexpr int kTakeAhead = 2;  // tiles

// One lane completes a slot whose item is there.
__device__ __forceinline__ void FillSlot(Slot& slot, unsigned piece, unsigned head, bool stop) {
  slot.tile.head = static_cast<int>(head);
  if constexpr (kBlocks > 1) {  // half of the rows, as whole warpgroups have them
    slot.first_row = slot.tile.first_row;
    slot.num_rows = slot.tile.num_rows;
    const int half = min(((slot.num_rows + 1) / 2 + 63) / 64 * 64, slot.num_rows);
    slot.tile.first_row += BlockRank() * half;
    slot.tile.num_rows = BlockRank() == 0 ? half : slot.num_rows - half;
  }
  slot.piece = piece;
  slot.redo = slot.zeroed = 0;
  slot.stop = stop;
}

// The first piece of this block: the one that it has on the schedule's list, if that is proper and
// of whole items. Puts it into the first slot, or is false. All lanes of a warp, a sequence each.
__device__ __forceinline__ bool FindFirst(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  int begin = 0, end = 0, context = 0;
  if (lane < p.max_seqs) {  // past the L1, in which there may be those of a call before
    begin = __ldcg(p.query_start_loc + lane);
    end = __ldcg(p.query_start_loc + lane + 1);
    context = __ldcg(p.context_lens + lane);
  }
  const bool used = lane < min(__ldcg(p.num_seqs), p.max_seqs);
  const bool valid = used && AreValid(p, begin, end, context);
  SequenceInfo info = {};
  if (valid) info = {begin, end - begin, context, 0};
  const Shape shape = ShapeOf<false, kComputeGroups == 3>(p, info);
  const Work own = shape.decode ? Work{} : WorkOf(p, info, shape);

  // Of all sequences up to this one: the items; of those before: the greatest end.
  int items = own.tiles, last = valid ? end : 0, before = 0;
  if (p.max_seqs > 1) before = ScanLanes(last, items);
  const bool contested = __any_sync(kAllLanes, info.query_len > 0 && before > begin);
  const int most = WarpMax(own.max_keys);
  const Work work = {WarpSum(own.tokens), WarpSum(own.tiles), most,
                     WarpMax(own.max_keys == most ? own.longest_tiles : 0)};
  if (contested || !AreWhole(p, false, CutOf(p, false, true, p.prefill_workers), work))
    return false;

  const unsigned piece = blockIdx.x / kBlocks, kv_heads = static_cast<unsigned>(p.kv_heads);
  const unsigned index = piece / kv_heads;
  const unsigned behind = __ballot_sync(kAllLanes, static_cast<unsigned>(items) > index);
  const int seq = behind != 0 ? __ffs(static_cast<int>(behind)) - 1 : 31;
  if (lane == seq) {
    Slot& slot = shared.slots[0];
    static_cast<WorkItem&>(slot.tile) =
        MakeItem(p, seq, info, shape, items - 1 - static_cast<int>(index), 1, 0);
    FillSlot(slot, piece, piece - index * kv_heads, behind == 0);
  }
  return true;
}

// A warp takes pieces of work ahead of time.
struct Pieces {
  // Blocks that start at once have a first piece; those that start when decode leaves them room
  // take one.
  __device__ __forceinline__ explicit Pieces(const Params& p) {
    if constexpr (kBesideDecode) {
      __threadfence();  // the schedule's results, without having waited for it
      Ask(p);
    }
  }

  __device__ __forceinline__ static unsigned* Counter(const Params& p) {
    return kCopied ? &p.header->next_copied : &p.header->next_prefill;
  }

  // Asks for the one that the next Take puts.
  __device__ __forceinline__ void Ask(const Params& p) {
    if (BlockRank() == 0 && threadIdx.x == kComputeWarps * 32) next = atomicAdd(Counter(p), 1u);
  }

  // The next one. Of a cluster the first block takes it, and tells the other, whose warp says when
  // it has room; both know the first piece.
  __device__ __forceinline__ unsigned Next(const Params& p, Shared& shared) {
    const int lane = threadIdx.x % 32, rank = BlockRank();
    unsigned piece = __shfl_sync(kAllLanes, next, 0);
    if (known) {
      known = false;
    } else if constexpr (kBlocks > 1) {
      const unsigned full = At(shared.taken_full, told), empty = At(shared.taken_empty, told);
      const unsigned taken = SharedAddress(&shared.taken[told.index]);
      if (rank == 0) {
        Wait(empty, told.parity);
        if (lane == 0) StoreInBlock(InBlock(taken, 1), piece, InBlock(full, 1));
      } else {
        Wait(At(shared.slot_empty, at), at.parity ^ 1);
        if (lane == 0) {
          ArriveExpecting(full, sizeof(unsigned));
          ArriveInBlock(InBlock(empty, 0));
        }
        Wait(full, told.parity);
        piece = *const_cast<const volatile unsigned*>(&shared.taken[told.index]);
      }
      told.Next();
    }
    return piece;
  }

  // Puts one into the next slot, or the end, after which it is false.
  __device__ __forceinline__ bool Take(const Params& p, Shared& shared) {
    const int lane = threadIdx.x % 32;
    const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
    unsigned piece = Next(p, shared);
    bool stop = false;
    if constexpr (kCopied) {
      stop = piece >= p.header->num_copied * kv_heads;
      piece = p.header->num_prefill_items * kv_heads - 1u - piece;
    }
    uint4 words = {};
    constexpr int kWords = sizeof(WorkItem) / 16;
    if (lane < kWords && !stop) {  // else beside the header, not after it: see WriteReadAhead
      const unsigned item = min(piece / kv_heads, static_cast<unsigned>(p.item_capacity) - 1u);
      words = reinterpret_cast<const uint4*>(p.items + item)[lane];
    }
    if constexpr (!kCopied) {
      stop = piece >= (p.header->num_prefill_items - p.header->num_copied) * kv_heads;
    }
    Wait(At(shared.slot_empty, at), at.parity ^ 1);
    Slot& slot = shared.slots[at.index];
    if (lane < kWords) reinterpret_cast<uint4*>(&slot.tile)[lane] = words;
    if constexpr (kBlocks > 1) __syncwarp();
    if (lane == 0) FillSlot(slot, piece, piece % kv_heads, stop);
    Arrive(At(shared.slot_full, at));
    at.Next();
    return !stop;
  }

  // Says that the one that FindFirst has found is there, or the end.
  __device__ __forceinline__ bool TakeFound(Shared& shared) {
    known = false;
    Arrive(At(shared.slot_full, at));
    at.Next();
    return shared.slots[0].stop == 0;
  }

  Place<kSlots> at, told;
  unsigned next = blockIdx.x / kBlocks;  // of lane 0
  bool known = !kBesideDecode;
};

// Starts to copy kCount rows to a tile, or a part of one of kOfRows: of elements, or of what will
// be terms. `rows`: addresses of rows lane, lane + 32 and so on; 0: zeros. All lanes of a warp,
// eight of them a row, so that one address serves its panels.
template <int kCount, int kOfRows = kCount>
__device__ __forceinline__ void CopyRows(const unsigned long long (&rows)[(kCount + 31) / 32],
                                         unsigned tile) {
  const int first = threadIdx.x % 32 / 8, piece = threadIdx.x % 8;
  const unsigned to[2] = {tile + PlaceInTile(first, piece), tile + PlaceInTile(first + 4, piece)};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const unsigned long long row = __shfl_sync(kAllLanes, rows[i / 32], i % 32 + first);
    const char* const from = reinterpret_cast<const char*>(row) + piece * 16;
#pragma unroll
    for (int panel = 0; panel < kPanels * kHalves * kDotTerms; ++panel) {
      CopyAsync<16>(to[i / 4 % 2] + i / 8 * kGroupBytes + PanelPlace<kOfRows>(panel),
                    from + panel * 128,
                    row != 0 && panel * 8 + piece < kOwnPieces * kHalves * kDotTerms);
    }
  }
}

// A warp: takes pieces until none is left. `found`: the first one is in its slot.
__device__ __forceinline__ void TakePieces(const Params& p, Shared& shared, bool found) {
  Place<1> wanted;
  for (Pieces pieces(p);; wanted.Next()) {
    bool more = found && pieces.TakeFound(shared);
    // Also where no other piece follows: this launch does not end before the schedule.
    WaitForSchedule();
    if (!found) more = pieces.Take(p, shared);
    found = false;
    if (!more) return;
    if (BlockRank() == 0) Wait(At(shared.piece_wanted, wanted), wanted.parity);
    pieces.Ask(p);
  }
}

// A warp: loads the queries of the pieces. Rows that do not exist become 0: they share with others
// the choice of how weights are computed, so that they must not hold what happened to lie there.
__device__ __forceinline__ void LoadQueries(const Params& p, Shared& shared) {
  constexpr int kPartRows = kRows / kQueryParts;
  const int lane = threadIdx.x % 32;
  Place<kSlots> at;
  for (Place<kQueries> to;; at.Next(), to.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) break;
    const int rows = slot.tile.num_rows;
    unsigned long long from[kQueryParts][kPartRows / 32];
#pragma unroll
    for (int j = 0; j < kRows / 32; ++j) {
      const int row = lane + j * 32;
      const Query* const query = static_cast<const Query*>(p.query);
      from[j * 32 / kPartRows][j * 32 % kPartRows / 32] =
          row < rows
              ? reinterpret_cast<unsigned long long>(query + QueryRow(p, slot.tile, row) * kHeadDim)
              : 0;
    }
    const bool negate = !kTerms && MakeLogitFactor(p, slot.tile.head).negate;
    Arrive(At(shared.slot_empty, at));

    char* const tile = shared.query[to.index];
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) {
      Wait(At(shared.query_empty[part], to), to.parity ^ 1);
      CopyRows<kPartRows, kRows>(from[part],
                                 SharedAddress(tile) + part * (kPartRows / 8 * kGroupBytes));
      const unsigned full = At(shared.query_full[part], to);
      if (!negate) {
        ArriveCopied(full);
        continue;
      }
      CommitCopies();
      WaitCopies<0>();
      __syncwarp();
      const int end = min(rows, (part + 1) * kPartRows);
      int row = lane < kRowLanes ? part * kPartRows + lane / kPieces : end;
      for (; row < end; row += kRowStep) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          Negate(tile + PlaceInTile(row, half * kPieces + lane % kPieces));
        }
      }
      Arrive(full);
    }
  }
  CommitCopies();
  WaitCopies<0>();  // no warp leaves while its copies announce themselves
}

// Keys of a tile that a lane looks up: the first of its box, or all that it has.
inline constexpr int kLaneKeys = BOXES ? 1 : (kKeys + 31) / 32;

// Zeros rows [begin, end) of a tile of values; all lanes of a warp.
__device__ __forceinline__ void ZeroRows(char* values, int begin, int end) {
  const int lane = threadIdx.x % 32;
  for (int row = begin + lane / kPieces; row < end; row += 32 / kPieces) {
#pragma unroll
    for (int part = 0; part < kHalves * kValueTerms; ++part) {
      const unsigned place = PlaceInTile<kKeys>(row, part * kPieces + lane % kPieces);
      *reinterpret_cast<uint4*>(values + place) = make_uint4(0, 0, 0, 0);
    }
  }
}

// Zeroes the values that are not finite of keys [begin, end) of a tile, and maybe of some beside
// them; true if there were such. All lanes of a warp. Whose next loads wait meanwhile: so it looks
// at all of them without a branch, and once more only where there are such.
__device__ __forceinline__ bool ZeroNonFiniteKeys(char* values, int begin, int end) {
  constexpr int kLoads = kGroupBytes / 512, kTogether = kLoads < 4 ? kLoads : 4;
  constexpr int kAllSlices = kSlices * kValueTerms;
  const auto for_groups = [&](auto run) {
#pragma unroll 1
    for (int i = begin / 8 * kAllSlices; i < (end + 7) / 8 * kAllSlices; ++i) {
      run(SharedAddress(values) + i % kAllSlices * kSliceBytes<kKeys> +
          i / kAllSlices * kGroupBytes);
    }
  };
  unsigned zeros[2] = {};  // or NaN
  for_groups([&](unsigned group) {
#pragma unroll 1
    for (int from = 0; from < kLoads; from += kTogether) {
      Vector<unsigned, 4> x[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        x[i] = LoadVector(group + (from + i) * 512 + threadIdx.x % 32 * 16);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) zeros[j % 2] = AddTimesZero<Cache>(zeros[j % 2], x[i].x[j]);
      }
    }
  });
  bool found = false;
  if ((zeros[0] | zeros[1]) != 0) {
    for_groups([&](unsigned group) {
      found |= ZeroNonFinite<8, kGroupBytes / 8, kGroupBytes / 8>(group, threadIdx.x % 32, 32);
    });
  }
  return found;
}

// A warp: loads the keys, or the values, of the pieces. A lane looks up the pages of its tokens: a
// box of them, which it copies, or where boxes do not fit the pages some single ones (of the copy a
// box is a page). What the piece must not see is not read, or, in a box that it sees a part of,
// overwritten with zeros where a weight of 0 would not hide it: in the values. So are values that
// are not finite among keys that not every row sees.
template <bool kValues>
__device__ __forceinline__ void LoadKeys(const Params& p, const TensorMap& map, Shared& shared) {
  const int lane = threadIdx.x % 32;
  // Of a page, that are looked up as one.
  const int tokens = kCopied ? kCopyTokens : BOXES ? p.box_tokens : 1;
  const int count = kKeys / tokens;
  auto& full = kValues ? shared.values_full : shared.keys_full;
  auto& empty = kValues ? shared.values_empty : shared.keys_empty;
  char* const tiles = kValues ? shared.values[0] : shared.keys[0];
  constexpr int kStageBytes = kValues ? Shared::kValueBytes : Shared::kKeyBytes;
  const int panels_a_head = kCopied ? kCopyTokens * kPanels : static_cast<int>(p.head_stride / 128);
  constexpr int kOwnTerms = kValues ? kValueTerms : kDotTerms, kNoPage = -(1 << 30);
  const int pages_a_term = kTerms ? p.copy_capacity / kCopyTokens : 0;
  Place<kStages> stage;
  unsigned raw_parity = 0;                                      // a bit a stage
  const int own = BOXES ? lane * kBlocks + BlockRank() : lane;  // what this lane looks up
  for (Place<kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) break;
    if (p.appended != 0) WaitForSchedule();
    const int seq = slot.tile.seq, head = slot.tile.head, panel = head * panels_a_head;
    const char* const base = (kValues ? p.v_cache : p.k_cache) + slot.tile.head * p.head_stride;
    const int key_begin = slot.tile.key_begin, key_end = slot.tile.key_end;
    const KeyTiles range = TilesOf(slot.tile);
    Visible by_all = {};
    if constexpr (kValues) {
      Tile whole = slot.tile;  // all blocks of a cluster cut the same
      if constexpr (kBlocks > 1) whole.first_row = slot.first_row, whole.num_rows = slot.num_rows;
      by_all = SeenByAll(p, whole);
    }
    Arrive(At(shared.slot_empty, at));

    const int* const table = p.block_tables + static_cast<long long>(seq) * p.max_pages;
    const int copied = kCopied ? CopyBegin(p, p.sequences[seq]) : 0;
    const auto key_of = [&](int t, int j) {
      return range.first_key + t * kKeys + (own + j * 32) * tokens;
    };
    const auto reads = [&](int t, int j) {
      const int key = key_of(t, j);
      return own + j * 32 < count && key < key_end && key + tokens > key_begin;
    };
    // Of all lanes, without branches: a key that is not read stands for one that is.
    int next[kLaneKeys];  // pages
    const auto look_up = [&](int t) {
#pragma unroll
      for (int j = 0; j < kLaneKeys; ++j) {
        const int key = min(max(key_of(t, j), key_begin), key_end - 1);
        next[j] = kCopied ? (copied + key) / kCopyTokens : LoadIndex(table + PageIndex(p, key));
      }
    };
    if (range.count > 0) look_up(range.count - 1);
    const int first_of_last = min(kTakeAhead, range.count) - 1;
    for (int t = range.count - 1;; --t) {
      if (!kValues && t == first_of_last && lane == 0 && BlockRank() == 0) {
        Arrive(SharedAddress(shared.piece_wanted));
      }
      if (t < 0) break;
      int page = 0, in_page = 0;                   // of the last key
      unsigned long long rows[(kKeys + 31) / 32];  // addresses
      bool bad = false;
#pragma unroll
      for (int j = 0; j < kLaneKeys; ++j) {
        const int key = key_of(t, j);
        in_page = kCopied ? 0 : key - PageIndex(p, key) * p.page_size;
        const bool exists =
            kCopied || static_cast<unsigned>(next[j]) < static_cast<unsigned>(p.num_pages);
        bad |= reads(t, j) && !exists;
        page = reads(t, j) && exists ? next[j] : kNoPage;  // zeros, whatever the term
        const char* const row = base + page * p.page_stride + in_page * p.token_stride;
        rows[j] = page < 0 ? 0 : reinterpret_cast<unsigned long long>(row);
      }
      if (!kValues && bad) {
        WaitForSchedule();
        p.state[seq] = kInvalid;
        p.header->any_bad_page = 1;
      }
      if (t > 0) look_up(t - 1);
      const int from = range.first_key + t * kKeys;
      const int begin = max(key_begin - from, 0), end = min(key_end - from, kKeys);
      const bool hidden =  // from some row
          kValues && (from + begin < by_all.begin || from + end > by_all.end);
      const bool cut = kValues && (hidden || begin % tokens != 0 || end % tokens != 0);
      char* const to = tiles + stage.index * kStageBytes;
      Wait(At(empty, stage), stage.parity ^ 1);
      if constexpr (BOXES) {
        const unsigned barrier = cut ? At(shared.values_raw, stage) : At(full, stage);
        if (lane == 0) ArriveExpecting(barrier, kStageBytes);
        __syncwarp();
        if (own < count) {
          const unsigned place = SharedAddress(to) + own * (tokens / 8 * kGroupBytes);
          const auto copy = [&](unsigned slice, int x0, int x1, int x2, int x3, int x4) {
            if constexpr (kBlocks == 1) {
              CopyBox(slice, &map, barrier, x0, x1, x2, x3, x4);
            } else {
              CopyBoxToBlocks(slice, &map, barrier, (1u << kBlocks) - 1u, x0, x1, x2, x3, x4);
            }
          };
#pragma unroll
          for (int i = 0; i < kSlices * kOwnTerms; ++i) {
            const unsigned slice = place + i * kSliceBytes<kKeys>;
            if constexpr (kHeadDim == kTileDims) {
              copy(slice, 0, 0, panel + i % kSlices * kSlicePanels, in_page / 8,
                   page + i / kSlices * pages_a_term);
            } else {  // the copy engine adds the zeros
              copy(slice, i * kPanelDims, 0, in_page / 8, page, head);
            }
          }
        }
        if (cut) {
          Wait(barrier, raw_parity >> stage.index & 1u);
          raw_parity ^= 1u << stage.index;
          ZeroRows(to, begin / tokens * tokens, begin);
          ZeroRows(to, end, (end + tokens - 1) / tokens * tokens);
        }
      } else {
        CopyRows<kKeys>(rows, SharedAddress(to));
        if (cut) {
          CommitCopies();
          WaitCopies<0>();
        } else {  // the next stage's copies do not wait for these
          ArriveCopied(At(full, stage));
        }
      }
      if (cut) {
        __syncwarp();
        if (hidden) {
          const int first = from + begin < by_all.begin ? begin : max(by_all.end - from, begin);
          const int last = from + end > by_all.end ? end : min(by_all.begin - from, end);
          // The piece is not done before its values are here.
          if (ZeroNonFiniteKeys(to, first, last)) slot.zeroed = 1;
        }
        FenceForMatrixReads();
        __syncwarp();
        if (!BOXES || lane == 0) Arrive(At(full, stage));
      }
      stage.Next();
    }
  }
  if constexpr (!BOXES) {
    CommitCopies();
    WaitCopies<0>();  // no warp leaves while its copies announce themselves
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_
