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
inline constexpr int kTileMemory =
    sizeof(Shared::query) + sizeof(Shared::keys) + sizeof(Shared::values);
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
  constexpr int kExchangeBytes =
      kParts > 1 ? kExchangeTile * (kTileKeys / 8 > 4 ? kTileKeys / 8 : 4) : 0;
  constexpr int kExtraPlace = (kTilesBytes + kExchangeBytes + 15) / 16 * 16;
  static_assert(!kFinishes || kExtraPlace + sizeof(Extra) <= kTileMemory);
  auto& extra = *reinterpret_cast<Extra*>(memory + kExtraPlace);
  for (int row = 0; row < tile.num_rows; row += kTileRows) {
    SyncAttend();
    ZeroPadding(memory, kTilesBytes);
    SyncAttend();
    Tile part = tile;
    part.first_row += row;
    part.num_rows = min(tile.num_rows - row, kTileRows);
    RunPrefill(
        p, part, false, [] {}, memory, extra);
  }
  FenceForCopies();
}

// Rows that a warp merges at once, so that their sums take 64 registers; a lane has vectors of four
// elements of each. Of a split they come in one copy.
inline constexpr int kRowVectors = (kHeadDim + 127) / 128;
inline constexpr int kMergeRows = 16 / kRowVectors;
inline constexpr int kMergeBytes = kMergeRows * kHeadDim * 4;
static_assert(!kFinishes || kComputeWarps * kMergeStages * kMergeBytes <= kTileMemory);

// Merges the splits of a tile, always in the same order; all threads that compute. One
// multiprocessor reads them all: what counts is that many bytes are under way. `at`: of the warp's
// barriers, the next.
__device__ __forceinline__ void MergeTile(const Params& p, const Tile& tile, Shared& shared,
                                          Place<kMergeStages>& at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float factor = MakeLogitFactor(p, tile.head).factor;
  const unsigned stages = SharedAddress(&shared) + warp * (kMergeStages * kMergeBytes);
  const unsigned barriers = SharedAddress(&shared.parts_full[warp * kMergeStages]);
  const int each = min((tile.num_rows + kComputeWarps - 1) / kComputeWarps, kMergeRows);
  for (int first = warp * each; first < tile.num_rows; first += kComputeWarps * each) {
    const int rows = min(tile.num_rows - first, each);
    const long long begin = PartialRow(p, tile, 0, first);
    const auto load = [&](int split, int stage) {
      const float* const from =
          p.partial_out + (begin + static_cast<long long>(split) * tile.rows) * kHeadDim;
      const int bytes = rows * kHeadDim * 4;
      if (lane != 0) return;
      ArriveExpecting(barriers + stage * 8, bytes);
      CopyBytes(stages + stage * kMergeBytes, from, bytes, barriers + stage * 8);
    };
    FenceForCopies();  // others have written the parts
    Place<kMergeStages> ahead = at;
    for (int split = 0; split < min(tile.splits, kMergeStages); ++split, ahead.Next()) {
      load(split, ahead.index);
    }

    // A row's weights a lane, two splits ahead.
    const int own = min(lane, rows - 1);
    float next_max[2], next_sum[2];
    const auto look = [&](int split, int i) {
      const long long row =
          begin + static_cast<long long>(min(split, tile.splits - 1)) * tile.rows + own;
      next_max[i] = __ldcg(p.partial_max + row);
      next_sum[i] = __ldcg(p.partial_sum + row);
    };
    look(0, 0);
    look(1, 1);
    float max = -Infinity(), sum = 0.0f;
    Vector<float, 4> values[kMergeRows][kRowVectors] = {};
    const auto has = [&](int v) { return kHeadDim % 128 == 0 || v * 128 + lane * 4 < kHeadDim; };
#pragma unroll 1
    for (int split = 0; split < tile.splits; ++split, at.Next()) {
      const float of_max = next_max[0], of_sum = next_sum[0], before = max;
      next_max[0] = next_max[1], next_sum[0] = next_sum[1];
      look(split + 2, 1);
      max = fmaxf(max, of_max);
      const float base = max == -Infinity() ? 0.0f : max;
      const float keep = Exp2((before - base) * factor), weight = Exp2((of_max - base) * factor);
      sum = sum * keep + of_sum * weight;
      Wait(barriers + at.index * 8, at.parity);
      const unsigned stage = stages + at.index * kMergeBytes + lane * 16;
#pragma unroll
      for (int r = 0; r < kMergeRows; ++r) {
        if (r >= rows) break;
        const float row_keep = __shfl_sync(kAllLanes, keep, r);
        const float row_weight = __shfl_sync(kAllLanes, weight, r);
#pragma unroll
        for (int v = 0; v < kRowVectors; ++v) {
          if (!has(v)) continue;
          const auto x = LoadShared<Vector<float, 4>>(stage + r * (kHeadDim * 4) + v * 512);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            values[r][v].x[j] = values[r][v].x[j] * row_keep + x.x[j] * row_weight;
          }
        }
      }
      __syncwarp();
      if (split + kMergeStages < tile.splits) load(split + kMergeStages, at.index);
    }

    // The rows' ends.
    const long long own_place = QueryRow(p, tile, first + own);
    const RowEnd end = FinishRow(p, tile, own_place, factor, max, sum);
    if (p.lse != nullptr && lane < rows) p.lse[own_place] = end.lse;
#pragma unroll
    for (int r = 0; r < kMergeRows; ++r) {
      if (r >= rows) break;
      const long long place = __shfl_sync(kAllLanes, own_place, r);
      const float of_row = __shfl_sync(kAllLanes, end.factor, r);
      const bool nothing = __shfl_sync(kAllLanes, static_cast<int>(end.sees_nothing), r) != 0;
#pragma unroll
      for (int v = 0; v < kRowVectors; ++v) {
        if (!has(v)) continue;
        Vector<Out, 4> x;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x.x[j] = FromFloat<Out>(nothing ? 0.0f : values[r][v].x[j] * of_row);
        }
        StoreVector(static_cast<Out*>(p.out) + place * kHeadDim + v * 128 + lane * 4, x);
      }
    }
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
  FenceForCopies();  // to where rows have been staged
  sync();
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  unsigned left = shared.left;
  Place<kMergeStages> part;
#pragma unroll 1
  for (int slot = 0; slot < kSlots || left != 0; ++slot) {
    Tile tile;
    if (slot < kSlots) {  // the last pieces
      if (!IsLeft(shared.slots[slot])) continue;
      tile = shared.slots[slot].tile;
      tile.again = HasAgain(shared.slots[slot]);
    } else {
      const unsigned piece = left / 2 - 1;
      tile = {p.items[piece / kv_heads], static_cast<int>(piece % kv_heads),
              static_cast<int>(left % 2)};
      CutForBlock(tile);
      left = __ldcg(p.redo + LeftPlace(piece));
    }
    if (tile.again != 0) {
      if (__ldcg(p.state + tile.seq) == kInvalid) {
        WriteInvalid(p, tile);
      } else if (threadIdx.x < kAttendThreads) {
        RunAgain(p, tile, reinterpret_cast<char*>(&shared));
      }
    }
    if (tile.splits > 1 && ArriveLast(p.arrivals + PartialRow(p, tile, 0, 0),
                                      static_cast<unsigned>(tile.splits), threadIdx.x == 0, sync)) {
      MergeTile(p, tile, shared, part);
      sync();  // before another piece takes the shared memory
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
