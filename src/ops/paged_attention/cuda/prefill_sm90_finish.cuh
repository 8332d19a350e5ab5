// The end of a block of the Hopper prefill kernel where no attend launch is behind it: what its
// pieces have left to be done, and the rows that no piece has. No block waits for another: rows
// that are not exact are done again by the block that has written them, a tile that is split is
// merged by the block that ends the last of its pieces.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FINISH_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FINISH_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/prefill.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kComputeThreads = kComputeWarps * 32;
inline constexpr int kEndBarrier = 5;  // a named one, of those that compute

// Writes NaN to the rows of a tile whose sequence is invalid, or leaves them to the merge.
__device__ __forceinline__ void WriteInvalid(const Params& p, const Tile& tile) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = warp; row < tile.num_rows; row += kComputeWarps) {
    if (tile.splits > 1) {
      if (lane == 0) p.partial_sum[PartialRow(p, tile, row)] = NaN();
      continue;
    }
    const long long at = QueryRow(p, tile, row);
    Out* const out = static_cast<Out*>(p.out) + at * kHeadDim;
    for (int i = lane; i < kHeadDim; i += 32) out[i] = FromFloat<Out>(NaN());
    if (p.lse != nullptr && lane == 0) p.lse[at] = NaN();
  }
}

// Does a tile's rows again that are marked or come out not finite (Tile::again); a warpgroup.
__device__ __forceinline__ void RunAgain(const Params& p, const Tile& tile, char* memory) {
  using Extra = paged_attention::PrefillShared;
  constexpr int kExchangeBytes = kParts > 1 ? kExchangeTile * (kTileKeys / 8 > 4 ? kTileKeys / 8 : 4)
                                            : 0;
  constexpr int kExtraPlace = (kTilesBytes + kExchangeBytes + 15) / 16 * 16;
  static_assert(kExtraPlace + sizeof(Extra) <=
                sizeof(Shared::query) + sizeof(Shared::keys) + sizeof(Shared::values));
  auto& extra = *reinterpret_cast<Extra*>(memory + kExtraPlace);
  for (int row = 0; row < tile.num_rows; row += kTileRows) {
    SyncAttend();
    ZeroPadding(memory, kTilesBytes);
    SyncAttend();
    Tile part = tile;
    part.first_row += row;
    part.num_rows = min(tile.num_rows - row, kTileRows);
    RunPrefill(p, part, false, [] {}, memory, extra);
  }
}

// Whether anything is, when all warps of the block have ended their part.
__device__ __forceinline__ bool HasLeft(const Shared& shared) {
  bool any = shared.left != 0 || shared.has_fills != 0;
#pragma unroll
  for (const Slot& slot : shared.slots) any |= IsLeft(slot);
  return any;
}

// Then: all threads that compute. A function of its own, since what is seldom run would cost the
// others registers.
__device__ __noinline__ void FinishBlock(const Params& p, Shared& shared) {
  const auto sync = [] { SyncThreads(kEndBarrier, kComputeThreads); };
  WaitForLaunchesBefore();
  if (threadIdx.x == 0) {
    for (const Slot& slot : shared.slots) LeavePiece(p, shared, slot);
  }
  sync();
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  for (unsigned left = shared.left; left != 0;) {
    const unsigned piece = left / 2 - 1;
    Tile tile{p.items[piece / kv_heads], static_cast<int>(piece % kv_heads),
              static_cast<int>(left % 2)};
    CutForBlock(tile);
    left = __ldcg(p.redo + LeftPlace(piece));
    if (tile.again != 0) {
      if (__ldcg(p.state + tile.seq) == kInvalid) {
        WriteInvalid(p, tile);
      } else if (threadIdx.x < kAttendThreads) {
        RunAgain(p, tile, reinterpret_cast<char*>(&shared));
      }
    }
    if (tile.splits > 1 && ArriveLast(p.arrivals + PartialRow(p, tile, 0, 0),
                                      static_cast<unsigned>(tile.splits), threadIdx.x == 0, sync)) {
      MergeSplits<Out, kHeadDim, 16>(p, tile, static_cast<int>(threadIdx.x / 32), kComputeWarps);
    }
  }
  if (shared.has_fills == 0) return;
  const int fills = (p.tokens + kFillTokens - 1) / kFillTokens * p.kv_heads;
  for (int i = blockIdx.x; i < fills; i += gridDim.x) {
    FillUnowned<Out, kHeadDim>(p, i / p.kv_heads * kFillTokens, i % p.kv_heads, kComputeThreads,
                               sync);
    sync();
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FINISH_CUH_
