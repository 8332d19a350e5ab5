// The end of a block of the Hopper prefill kernel, in a call that this launch ends: rows that are
// not exact are done again by the block that has written them, and rows that no sequence owns are
// filled by all blocks. In other calls attend does that.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_END_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_END_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/prefill.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Where it is noted which piece this block has left before that one, plus 1; 0: none.
__device__ __forceinline__ unsigned* LeftBefore(const Params& p, unsigned piece) {
  return p.redo + piece * kBlocks + BlockRank();
}

// Some row of the piece has to be done again; one lane of a warp that computes, once or more.
__device__ __forceinline__ void LeavePiece(const Params& p, Shared& shared, Slot& slot) {
  WaitForSchedule();
  if (kMayEnd && p.header->prefill_ends != 0) {
    if (atomicExch(&slot.redo, 1u) != 0) return;
    *LeftBefore(p, slot.piece) = atomicExch(&shared.left, slot.piece + 1);
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
  WaitForLaunchesBefore();
  auto& extra = *reinterpret_cast<Extra*>(memory + kExtraPlace);
  const auto fetch_nothing = [] {};
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
#pragma unroll 1
  for (unsigned left = shared.left; left != 0;) {
    const unsigned piece = left - 1;
    Tile tile{p.items[piece / kv_heads], static_cast<int>(piece % kv_heads), 1};
    CutForBlock(tile);
    left = *LeftBefore(p, piece);
#pragma unroll 1
    for (int row = 0; row < tile.num_rows; row += kTileRows) {
      Tile part = tile;
      part.first_row += row;
      part.num_rows = min(tile.num_rows - row, kTileRows);
      SyncAttend();
      ZeroPadding(memory, kTilesBytes);
      SyncAttend();
      RunPrefill(p, part, /*careful=*/false, fetch_nothing, memory, extra);
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
