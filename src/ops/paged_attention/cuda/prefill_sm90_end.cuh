// The end of a block of the Hopper prefill kernel, in a call that this launch ends: rows that are
// not exact are done again by the block that has written them, tiles that are split are merged by
// the blocks that have parts of them, and rows that no sequence owns are filled by all blocks. In
// other calls attend does that.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_END_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_END_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/prefill.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Some row of the piece has to be done again; one lane of a warp that computes, once or more.
__device__ __forceinline__ void LeavePiece(const Params& p, Shared& shared, Slot& slot) {
  WaitForSchedule();
  if (kMayEnd && p.header->prefill_ends != 0) {
    if (atomicExch(&slot.redo, 1u) != 0) return;
    if (slot.tile.splits > 1) {  // it has been noted
      atomicOr(LeftBefore(p, slot.piece), kAgain);
    } else {
      NoteLeft(p, shared, slot.piece);
    }
    return;
  }
  const auto first = [&] {  // to say so, of all blocks of a cluster
    if constexpr (kBlocks == 1) return atomicExch(&slot.redo, 1u) == 0;
    return ExchangeInBlock(InBlock(SharedAddress(&slot.redo), 0), 1u) == 0;
  };
  if (!first()) return;
  p.redo[atomicAdd(&p.header->num_redo, 1u)] = slot.piece;
  const int row = kBlocks == 1 ? 0 : slot.first_row - slot.tile.first_row;  // the piece's first
  if (slot.tile.splits > 1) atomicAdd(p.arrivals + PartialRow(p, slot.tile, 0, row), 1u);
}

// Whether anything is left, when all warps of the block have ended their part.
__device__ __forceinline__ bool HasLeft(const Shared& shared) {
  return shared.left != 0 || shared.has_fills != 0;
}

// The pieces of a tile that are done count up its arrivals by one, shares of its merge that warps
// have taken by this.
inline constexpr unsigned kShareTaken = 1u << 16;
inline constexpr long long kWaitCycles = 30000;  // 15 to 20 us

// Merges shares of a split tile until none is left, if all parts of it are there, or come before
// the clock shows `deadline`. Who brings the last one finds them all, so that nothing depends on
// others' waiting. All lanes of a warp.
__device__ __forceinline__ void MergeShares(const Params& p, const Tile& tile, long long deadline) {
  const bool leads = threadIdx.x % 32 == 0;
  unsigned* const arrivals = p.arrivals + PartialRow(p, tile, 0, 0);
  const unsigned splits = static_cast<unsigned>(tile.splits);
  const unsigned shares = (static_cast<unsigned>(tile.num_rows) + 1u) / 2u;  // half a warp a row
  unsigned all = 0;
  if (leads) {
    do {
      all = *const_cast<const volatile unsigned*>(arrivals) % kShareTaken == splits;
    } while (all == 0 && clock64() < deadline);
    __threadfence();
  }
  __syncwarp();
  if (__shfl_sync(kAllLanes, all, 0) == 0) return;
  for (;;) {
    unsigned share = 0;
    if (leads) share = atomicAdd(arrivals, kShareTaken) / kShareTaken;
    share = __shfl_sync(kAllLanes, share, 0);
    if (share >= shares) return;
    MergeSplits<Out, kHeadDim, 16>(p, tile, static_cast<int>(share), static_cast<int>(shares));
  }
}

// Then: the block's first kAttendThreads. A function of its own, since what is seldom run would
// cost the others registers.
__device__ __noinline__ void EndBlock(const Params& p, Shared& shared) {
  using Extra = paged_attention::PrefillShared;
  constexpr int kExchangeBytes =
      kParts > 1 ? kExchangeTile * (kTileKeys / 8 > 4 ? kTileKeys / 8 : 4) : 0;
  constexpr int kExtraPlace = (kTilesBytes + kExchangeBytes + 15) / 16 * 16;
  static_assert(!kMayEnd || kExtraPlace + sizeof(Extra) <=
                                sizeof(shared.query) + sizeof(shared.keys) + sizeof(shared.values));
  char* const memory = reinterpret_cast<char*>(&shared);  // of the tiles, which nobody needs
  auto& extra = *reinterpret_cast<Extra*>(memory + kExtraPlace);
  WaitForLaunchesBefore();

  // The pieces that this block comes back to.
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  const auto for_pieces = [&](auto run) {
#pragma unroll 1
    for (unsigned left = shared.left; left != 0;) {
      const unsigned piece = left - 1, noted = __ldcg(LeftBefore(p, piece));
      Tile tile{p.items[piece / kv_heads], static_cast<int>(piece % kv_heads), 1};
      CutForBlock(tile);
      if (tile.num_rows > 0) run(tile, tile.splits == 1 || noted >= kAgain);
      left = noted % kAgain;
    }
  };
  const auto fetch_nothing = [] {};
  bool any_parts = false;
  for_pieces([&](const Tile& tile, bool again) {
#pragma unroll 1
    for (int row = 0; again && row < tile.num_rows; row += kTileRows) {
      Tile part = tile;
      part.first_row += row;
      part.num_rows = min(tile.num_rows - row, kTileRows);
      SyncAttend();
      ZeroPadding(memory, kTilesBytes);
      SyncAttend();
      RunPrefill(p, part, /*careful=*/false, fetch_nothing, memory, extra);
    }
    if (tile.splits == 1) return;
    any_parts = true;
    SyncAttend();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(p.arrivals + PartialRow(p, tile, 0, 0), 1u);
      __threadfence();
    }
  });
  if (any_parts) {
    SyncAttend();
    const long long begin = clock64();
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {  // those that can be merged at once come first
      const long long deadline = begin + turn * kWaitCycles;
      for_pieces([&](const Tile& tile, bool) {
        if (tile.splits > 1) MergeShares(p, tile, deadline);
      });
    }
  }
  if (shared.has_fills == 0) return;
  const int fills = (p.tokens + kFillTokens - 1) / kFillTokens * p.kv_heads;
  for (int i = blockIdx.x; i < fills; i += gridDim.x) {
    FillUnowned<Out, kHeadDim>(p, i / p.kv_heads * kFillTokens, i % p.kv_heads, kAttendThreads);
    SyncAttend();
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_END_CUH_
