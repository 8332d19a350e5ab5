// The warps of the Hopper prefill kernel that load: pieces of work, queries, keys and values.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_

#include "src/ops/paged_attention/cuda/non_finite.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

// A warp: takes pieces of work ahead of time.
__device__ __forceinline__ void TakePieces(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  const unsigned total = p.header->num_prefill_items * kv_heads;
  unsigned piece = blockIdx.x;
  for (Place<kSlots> at;; at.Next()) {
    unsigned next = 0;
    if (lane == 0) next = atomicAdd(&p.header->next_prefill, 1u);
    const bool stop = piece >= total;
    uint4 words = {};
    constexpr int kWords = sizeof(WorkItem) / 16;
    if (!stop && lane < kWords) {
      words = reinterpret_cast<const uint4*>(p.items + piece / kv_heads)[lane];
    }
    Wait(At(shared.slot_empty, at), at.parity ^ 1);
    Slot& slot = shared.slots[at.index];
    if (lane < kWords) reinterpret_cast<uint4*>(&slot.tile)[lane] = words;
    if (lane == 0) {
      slot.tile.head = static_cast<int>(piece % kv_heads);
      slot.piece = piece;
      slot.redo = slot.zeroed = 0;
      slot.stop = stop;
    }
    Arrive(At(shared.slot_full, at));
    if (stop) return;
    piece = __shfl_sync(kAllLanes, next, 0);
  }
}

// A warp: loads the queries of the pieces. Rows that do not exist become 0: they share with others
// the choice of how weights are computed, so that they must not hold what happened to lie there.
__device__ __forceinline__ void LoadQueries(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int first_row = lane / kPieces, piece = lane % kPieces;
  const Query* const query = static_cast<const Query*>(p.query) + piece * 8;
  unsigned places[8 / kRowStep];  // in a group of eight rows
#pragma unroll
  for (int i = 0; i < 8 / kRowStep; ++i) places[i] = PlaceInTile(first_row + i * kRowStep, piece);
  Place<kSlots> at;
  for (Place<kQueries> to;; at.Next(), to.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    RowWalk<kRowStep> from(p, slot.tile, first_row);
    const int rows = slot.tile.num_rows;
    const bool negate = MakeLogitFactor(p, slot.tile.head).negate;
    Arrive(At(shared.slot_empty, at));

    char* const tile = shared.query[to.index];
    const unsigned tile_address = SharedAddress(tile);
    Wait(At(shared.query_empty, to), to.parity ^ 1);
#pragma unroll 4
    for (int group = 0; group < kRows / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 8 / kRowStep; ++i, from.Next()) {
        const bool exists = group * 8 + i * kRowStep + first_row < rows;
        CopyAsync<16>(tile_address + group * kGroupBytes + places[i],
                      query + (exists ? static_cast<long long>(from.at) * kHeadDim : 0), exists);
      }
    }
    CommitCopies();
    WaitCopies<0>();
    if (negate) {
      for (int row = first_row; row < rows; row += kRowStep) Negate(tile + PlaceInTile(row, piece));
    }
    FenceForMatrixReads();
    Arrive(At(shared.query_full, to));
  }
}

// Zeros rows [begin, end) of a tile of values; all lanes of a warp.
__device__ __forceinline__ void ZeroRows(char* values, int begin, int end) {
  const int lane = threadIdx.x % 32;
  for (int row = begin + lane / kPieces; row < end; row += 32 / kPieces) {
    *reinterpret_cast<uint4*>(values + PlaceInTile(row, lane % kPieces)) = make_uint4(0, 0, 0, 0);
  }
}

// A warp: loads the keys, or the values, of the pieces. A lane copies the box of its tokens. What
// the piece must not see is not read, or, in a box that it sees a part of, overwritten with zeros
// where a weight of 0 would not hide it: in the values. So are values that are not finite among
// keys that not every row sees.
template <bool kValues>
__device__ __forceinline__ void LoadBoxes(const Params& p, const TensorMap& map, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int box_tokens = p.box_tokens;
  const int boxes = kKeys / box_tokens;
  auto& full = kValues ? shared.values_full : shared.keys_full;
  auto& empty = kValues ? shared.values_empty : shared.keys_empty;
  auto& tiles = kValues ? shared.values : shared.keys;
  const int panels_a_head = static_cast<int>(p.head_stride / 128);
  Place<kStages> stage;
  unsigned raw_parity = 0;
  for (Place<kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    const int seq = slot.tile.seq, panel = slot.tile.head * panels_a_head;
    const int key_begin = slot.tile.key_begin, key_end = slot.tile.key_end;
    const KeyTiles range = TilesOf(slot.tile);
    const Visible by_all = kValues ? SeenByAll(p, slot.tile) : Visible{};
    Arrive(At(shared.slot_empty, at));

    const int* const table = p.block_tables + static_cast<long long>(seq) * p.max_pages;
    const auto reads = [&](int key) {
      return lane < boxes && key < key_end && key + box_tokens > key_begin;
    };
    const auto page_of = [&](int key) {
      return reads(key) ? LoadIndex(table + PageIndex(p, key)) : -1;
    };
    int key = (range.end - 1) * kKeys + lane * box_tokens;
    int next = range.first < range.end ? page_of(key) : -1;
    for (int t = range.end - 1; t >= range.first; --t, key -= kKeys) {
      int page = next;
      if (t > range.first) next = page_of(key - kKeys);
      if (static_cast<unsigned>(page) >= static_cast<unsigned>(p.num_pages)) {
        page = -1;  // zeros
        if (!kValues && reads(key)) {
          p.state[seq] = kInvalid;
          p.header->any_bad_page = 1;
        }
      }
      const int group = (key - PageIndex(p, key) * p.page_size) / 8;
      const int begin = max(key_begin - t * kKeys, 0), end = min(key_end - t * kKeys, kKeys);
      const bool hidden =  // from some row
          kValues && (t * kKeys + begin < by_all.begin || t * kKeys + end > by_all.end);
      const bool cut = kValues && (hidden || begin % box_tokens != 0 || end % box_tokens != 0);
      char* const to = tiles[stage.index];
      Wait(At(empty, stage), stage.parity ^ 1);
      const unsigned barrier = cut ? SharedAddress(&shared.values_raw) : At(full, stage);
      if (lane == 0) ArriveExpecting(barrier, kTileBytes);
      __syncwarp();
      if (lane < boxes) {
        CopyBox(SharedAddress(to) + lane * (box_tokens / 8 * kGroupBytes), &map, barrier, panel,
                group, page);
      }
      if (cut) {
        Wait(barrier, raw_parity);
        raw_parity ^= 1;
        ZeroRows(to, begin / box_tokens * box_tokens, begin);
        ZeroRows(to, end, (end + box_tokens - 1) / box_tokens * box_tokens);
        __syncwarp();
        if (hidden &&
            ZeroNonFinite<kKeys, kHeadDim * 2, kHeadDim * 2>(SharedAddress(to), lane, 32)) {
          slot.zeroed = 1;  // the piece is not done before its values are here
        }
        FenceForMatrixReads();
        __syncwarp();
        if (lane == 0) Arrive(At(full, stage));
      }
      stage.Next();
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_LOAD_CUH_
