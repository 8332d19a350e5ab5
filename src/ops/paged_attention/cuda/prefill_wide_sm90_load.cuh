// The warps of the Hopper prefill kernel for wide heads that load: pieces of work, which the first
// block of a cluster takes for both, and chunks of keys and values, of which each block loads half
// of the keys for both.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_LOAD_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_LOAD_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kChunks = Shared::kChunks;
inline constexpr int kChunkBytes = Shared::kChunkBytes;
inline constexpr int kChunkGroupBytes = kBoxPanels * 1024;  // eight keys of a chunk
inline constexpr int kBlockKeys = kKeys / kPieceBlocks;     // that a block loads of a tile
static_assert(kBoxPanels * kPanelDims * kChunks == kHeadDim && !kConverts && BOXES);

// A warp of each block: the first one takes pieces, and tells the other.
__device__ __forceinline__ void TakePieces(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32, other = BlockRank() ^ 1;
  Pieces pieces;
  for (Place<kSlots> at;; at.Next()) {
    unsigned piece;
    if (BlockRank() == 0) {
      piece = pieces.Next(p);
      Wait(At(shared.piece_empty, at), at.parity ^ 1);
      if (lane == 0) {
        StoreInBlock(InBlock(&shared.pieces[at.index], other), piece,
                     InBlock(&shared.piece_full[at.index], other));
      }
    } else {
      WaitForBlock(At(shared.piece_full, at), at.parity);
      piece = shared.pieces[at.index];
      __syncwarp();
      if (lane == 0) ArriveInBlock(InBlock(&shared.piece_empty[at.index], other));
    }
    if (!pieces.Put(p, shared, piece)) return;
  }
}

// Zeros rows [begin, end) of a chunk of values; all lanes of a warp.
__device__ __forceinline__ void ZeroChunkRows(unsigned chunk, int begin, int end) {
  const int piece = threadIdx.x % 32;  // of the 32 of 16 bytes that a row has
  for (int row = begin; row < end; ++row) {
    StoreShared(
        chunk + row / 8 * kChunkGroupBytes + piece / 8 * 1024 + SwizzledChunk(row % 8, piece % 8),
        make_uint4(0, 0, 0, 0));
  }
}

// A warp: loads the chunks of keys, or of values, of the pieces. A lane looks up the page of a box,
// which it copies to both blocks. What must not count is treated as LoadKeys does, by each block in
// its own copy.
template <bool kValues>
__device__ __forceinline__ void LoadChunks(const Params& p, const TensorMap& map, Shared& shared) {
  const int lane = threadIdx.x % 32, tokens = p.box_tokens;
  const int count = kBlockKeys / tokens;  // boxes of a chunk: 2 or 4
  const bool loads = lane < kChunks * count;
  const int own_chunk = lane / count;
  const int own_key = BlockRank() * kBlockKeys + lane % count * tokens;  // in the tile
  auto& full = kValues ? shared.values_full : shared.keys_full;
  auto& empty = kValues ? shared.values_empty : shared.keys_empty;
  auto& chunks = kValues ? shared.values : shared.keys;
  const int panels_a_head = static_cast<int>(p.head_stride / 128);
  unsigned parity = 0, raw_parity = 0;
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
    int next = 0;  // page
    const auto look_up = [&](int t) {
      const int key = min(max(t * kKeys + own_key, key_begin), key_end - 1);
      next = LoadIndex(table + PageIndex(p, key));
    };
    if (range.first < range.end) look_up(range.end - 1);
    for (int t = range.end - 1; t >= range.first; --t) {
      const int key = t * kKeys + own_key;
      const int in_page = key - PageIndex(p, key) * p.page_size;
      const bool reads = loads && key < key_end && key + tokens > key_begin;
      const bool exists = static_cast<unsigned>(next) < static_cast<unsigned>(p.num_pages);
      const int page = reads && exists ? next : -1;  // zeros
      if (!kValues && reads && !exists) {
        p.state[seq] = kInvalid;
        p.header->any_bad_page = 1;
      }
      if (t > range.first) look_up(t - 1);
      const int begin = max(key_begin - t * kKeys, 0), end = min(key_end - t * kKeys, kKeys);
      const bool hidden =  // from some row
          kValues && (t * kKeys + begin < by_all.begin || t * kKeys + end > by_all.end);
      const bool cut = kValues && (hidden || begin % tokens != 0 || end % tokens != 0);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        Wait(SharedAddress(&empty[i]), parity ^ 1);
        const unsigned barrier = SharedAddress(cut ? &shared.values_raw[i] : &full[i]);
        if (lane == 0) ArriveExpecting(barrier, kChunkBytes);
        __syncwarp();
        if (loads && own_chunk == i) {
          CopyBoxToBlocks(SharedAddress(chunks[i]) + own_key / 8 * kChunkGroupBytes, &map, barrier,
                          panel + i * kBoxPanels, in_page / 8, page, (1 << kPieceBlocks) - 1);
        }
      }
      parity ^= 1;
      if constexpr (kValues) {
        if (!cut) continue;
#pragma unroll 1
        for (int i = 0; i < kChunks; ++i) {
          const unsigned chunk = SharedAddress(chunks[i]);
          Wait(SharedAddress(&shared.values_raw[i]), raw_parity);
          ZeroChunkRows(chunk, begin / tokens * tokens, begin);
          ZeroChunkRows(chunk, end, (end + tokens - 1) / tokens * tokens);
          __syncwarp();
          if (hidden) {
            const int from = t * kKeys;
            const int first = from + begin < by_all.begin ? begin : max(by_all.end - from, begin);
            const int last = from + end > by_all.end ? end : min(by_all.begin - from, end);
            bool found = false;
            for (int group = first / 8; group * 8 < last; ++group) {
              found |= ZeroNonFinite<8, kBoxPanels * 128, kBoxPanels * 128>(
                  chunk + group * kChunkGroupBytes, lane, 32);
            }
            // The piece is not done before its values are here.
            if (found) slot.zeroed = 1;
          }
          FenceForMatrixReads();
          __syncwarp();
          if (lane == 0) Arrive(SharedAddress(&full[i]));
        }
        raw_parity ^= 1;
      }
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_LOAD_CUH_
