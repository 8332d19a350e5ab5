// Decode on Hopper: few query rows of a sequence (those of a kv head's group, or of several tokens,
// up to 32) against a long range of keys, bound by memory. A block takes ranges of the line of
// decode work (line.cuh); neighbouring blocks have the heads of one range, whose keys lie side by
// side. One warp loads stages of 128 keys and values by the tensor copy engine, a box a page, ahead
// of the eight that compute 16 keys of each stage, and beyond the end of a piece; where boxes do
// not fit the pages four warps more copy single rows. At a piece's end others merge the softmaxes
// in shared memory and write the rows, beside the next piece. Where a sequence has 17 to 32 rows,
// stages are of 64 keys, and two warpgroups compute (decode_sm90_wide.cuh).
//
// What waits on what: slot_full (a piece is taken), queries_full, full (its queries, its keys are
// there) -> logits, weights, sums -> empty; at a piece's end sums_full -> merged -> sums_empty,
// slot_empty. No wait is for another block, and none for a later piece: the loader waits for a slot
// while the keys of the piece before are not loaded yet, but those of the pieces in the slots'
// earlier uses are. Rows wait for slot_full too, and slot_empty for them; and the loader, before
// it takes more than it has handed over, for begun (the last of that is being copied).
//
// A page out of range makes the sums of its tile NaN: parts are merged to NaN whatever the others
// are.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_

#if LINE_ROWS > 16
#include "src/ops/paged_attention/cuda/decode_sm90_wide.cuh"
#else
#include "src/ops/paged_attention/cuda/decode_sm90_compute.cuh"
#endif
#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Elements of a row that a lane has, and in how many pieces of the row it has so many.
inline constexpr int kRowVector = kHeadDim % 128 == 0 ? 4 : kHeadDim % 64 == 0 ? 2 : 1;
inline constexpr int kRowPieces = kHeadDim / 32 / kRowVector;
using RowVector = Vector<float, kRowVector>;

__device__ __forceinline__ void StoreRow(const Params& p, long long query_row, int piece,
                                         const RowVector& x) {
  Out* const to = static_cast<Out*>(p.out) + query_row * kHeadDim;
  reinterpret_cast<Vector<Out, kRowVector>*>(to)[piece * 32 + threadIdx.x % 32] =
      FromFloats<Out>(x);
}

// Merges the sums in shared memory of rows [first, end), in a fixed order, and writes the rows, or
// their partial results. What a row has besides its elements a lane works out.
__device__ __forceinline__ void WriteRows(const Params& p, const Tile& tile, DecodeMemory& shared,
                                          int first, int end, int warp) {
  constexpr int kParts = DecodeMemory::kParts;
  const int lane = threadIdx.x % 32;
  const int own = min(first + lane, end - 1);
  float own_factors[kParts];
  const bool own_sees =
      WeighWarps(p, tile, own, shared.max[own], shared.sum[own], MakeLogitFactor(p, tile.head),
                 warp == 0 && first + lane == own, own_factors);
  const long long own_place = tile.splits > 1 ? PartialRow(p, tile, own) : QueryRow(p, tile, own);
  for (int row = warp; row < end - first; row += kWriteWarps) {
    const long long place = __shfl_sync(kAllLanes, own_place, row);
#pragma unroll
    for (int piece = 0; piece < kRowPieces; ++piece) {
      RowVector value = {};
#pragma unroll
      for (int w = 0; w < kParts; ++w) {
        const float factor = __shfl_sync(kAllLanes, own_factors[w], row);
        const auto x = reinterpret_cast<const RowVector*>(shared.sums[w][row])[piece * 32 + lane];
#pragma unroll
        for (int j = 0; j < kRowVector; ++j) value.x[j] += x.x[j] * factor;
      }
      if (tile.splits > 1) {
        float* const to = p.partial_out + place * kHeadDim;
        reinterpret_cast<RowVector*>(to)[piece * 32 + lane] = value;
      } else {
        StoreRow(p, place, piece, __shfl_sync(kAllLanes, own_sees, row) ? value : RowVector{});
      }
    }
  }
}

// Of another SM: past this one's L1.
__device__ __forceinline__ RowVector LoadPartial(const float* row, int piece) {
  const int lane = piece * 32 + threadIdx.x % 32;
  if constexpr (kRowVector == 4) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(row) + lane);
    return {{x.x, x.y, x.z, x.w}};
  } else if constexpr (kRowVector == 2) {
    const float2 x = __ldcg(reinterpret_cast<const float2*>(row) + lane);
    return {{x.x, x.y}};
  } else {
    return {{__ldcg(row + lane)}};
  }
}

// Merges a piece of each row of the parts of a tile, always in the same order; a warp has kRows
// rows at most. Loads do not wait for each other: a warp takes all of its rows, of as many parts as
// there is room for, at once, and a lane looks at what the parts say of a row. There are no more
// parts than a few a multiprocessor: sums of them need no second level.
template <int kRows>
__device__ __forceinline__ void MergeParts(const Params& p, const Tile& tile, int piece, int warp) {
  constexpr int kParts = kRows < 4 ? 8 / kRows : 2;
  const int lane = threadIdx.x % 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const long long first = PartialRow(p, tile, 0, 0);
  const int own = min(lane, tile.num_rows - 1);
  const auto row_of = [&](int r) { return min(warp * kRows + r, tile.num_rows - 1); };
  float max = -Infinity(), sum = 0.0f;
  RowVector values[kRows] = {};
  const auto add = [&](int part, int count) {
    float of_max[kParts], of_sum[kParts];
    RowVector x[kParts][kRows];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      of_max[i] = -Infinity(), of_sum[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) x[i][r] = {};
      if (i >= count) continue;
      const long long at = first + static_cast<long long>(part + i) * tile.rows;
      of_max[i] = __ldcg(p.partial_max + at + own);
      of_sum[i] = __ldcg(p.partial_sum + at + own);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        x[i][r] = LoadPartial(p.partial_out + (at + row_of(r)) * kHeadDim, piece);
      }
    }
    const float before = max;
#pragma unroll
    for (int i = 0; i < kParts; ++i) max = fmaxf(max, of_max[i]);
    const float keep = Exp2(Log2Weight(before, max, logit.factor));
    sum *= keep;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      of_max[i] = Exp2(Log2Weight(of_max[i], max, logit.factor));  // now its weight
      sum += of_sum[i] * of_max[i];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float of_row = __shfl_sync(kAllLanes, keep, row_of(r));
#pragma unroll
      for (int j = 0; j < kRowVector; ++j) values[r].x[j] *= of_row;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const float weight = __shfl_sync(kAllLanes, of_max[i], row_of(r));
#pragma unroll
        for (int j = 0; j < kRowVector; ++j) values[r].x[j] += x[i][r].x[j] * weight;
      }
    }
  };
  int part = 0;
#pragma unroll 1
  for (; part + kParts <= tile.splits; part += kParts) add(part, kParts);
  if (part < tile.splits) add(part, tile.splits - part);

  const long long own_place = QueryRow(p, tile, own);
  const RowEnd end = FinishRow(p, tile, own_place, logit, max, sum);
  if (HasLse(p) && piece == 0 && warp == 0 && lane == own) p.lse[own_place] = end.lse;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float of_row = __shfl_sync(kAllLanes, end.factor, row_of(r));
    const bool nothing = __shfl_sync(kAllLanes, end.sees_nothing, row_of(r));
    const long long place = __shfl_sync(kAllLanes, own_place, row_of(r));
    if (warp * kRows + r >= tile.num_rows) break;
#pragma unroll
    for (int j = 0; j < kRowVector; ++j) values[r].x[j] = nothing ? 0.0f : values[r].x[j] * of_row;
    StoreRow(p, place, piece, values[r]);
  }
}

__device__ __forceinline__ void WritePieces(const Params& p, DecodeMemory& shared, int warp) {
  const int lane = threadIdx.x % 32;
  const bool leader = warp == 0 && lane == 0;
  const auto sync = [] { SyncThreads(kWriters, kWriteThreads); };
  WaitForLaunchesBefore();  // the schedule sets the counters of arrivals
  Place<1> sums;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeSlot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    Tile tile = slot.tile;
    if constexpr (kTokens) tile.splits = 1;  // known here, so that there is no code for more
    unsigned* const arrivals = slot.arrivals;
    for (int first = 0; first < tile.num_rows; first += DecodeMemory::kSumRows) {
      const int end = min(first + DecodeMemory::kSumRows, tile.num_rows);
      Wait(At(shared.sums_full, sums), sums.parity);
      if (slot.bad != 0) {
        for (int row = first + warp * 32 + lane; row < end; row += kWriteThreads) {
          shared.sum[row][0] = NaN();
        }
        sync();
      }
      WriteRows(p, tile, shared, first, end, warp);
      Arrive(At(shared.sums_empty, sums));
      sums.Next();
    }
    Arrive(At(shared.slot_empty, at));
    if (tile.splits > 1 && ArriveLast(arrivals, tile.splits, leader, sync)) {
      constexpr int kRows = (kLineRows + kWriteWarps - 1) / kWriteWarps;
#pragma unroll 1
      for (int piece = 0; piece < kRowPieces; ++piece) {
        if (tile.num_rows <= kWriteWarps) {
          MergeParts<1>(p, tile, piece, warp);
        } else {
          MergeParts<kRows>(p, tile, piece, warp);
        }
      }
    }
  }
}

__device__ __forceinline__ void Decode(const Params& p, const TensorMap& key_boxes,
                                       const TensorMap& value_boxes, char* memory) {
  DecodeMemory& shared = *reinterpret_cast<DecodeMemory*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  if (HasOwnLine(p)) FindOwnLine(p, shared);
  if (threadIdx.x == kDecodeThreads - 1) {  // seldom a sequence's
    InitDecodeBarriers(shared);
    if (kBoxes) PrefetchMap(&key_boxes);
    if (kBoxes && !kPairs) PrefetchMap(&value_boxes);
  }
  __syncthreads();

  // Each warp's part.
  if (warp < kLineWarps) {
    ComputePieces(p, shared, warp);
  } else if (warp == kLineWarps) {
    Loader{p, shared, {p, key_boxes, value_boxes, shared}}.Run();
  } else if (!kBoxes && warp < kFirstWriteWarp) {
    CopyKeys(p, shared, warp - kLineWarps - 1);
  } else {
    WritePieces(p, shared, warp - kFirstWriteWarp);
  }

  // Rows that no piece has.
  __syncthreads();
  if (shared.has_fills != 0) {
    const int fills = (p.tokens + kFillTokens - 1) / kFillTokens * p.kv_heads;
    for (int i = blockIdx.x; i < fills; i += gridDim.x) {
      FillUnowned<Out, kHeadDim>(p, i / p.kv_heads * kFillTokens, i % p.kv_heads);
      __syncthreads();
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_
