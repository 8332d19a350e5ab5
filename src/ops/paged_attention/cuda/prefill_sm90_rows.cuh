// How rows of the Hopper prefill kernel end: from sums to results, or to the partial results of one
// of several splits, and what is in doubt about them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/non_finite.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_softmax.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kGroupDone = 1;  // named barriers, one a warpgroup: it is done

// What undoes the scaling of a row of queries, and how its logits become log2 units.
__device__ __forceinline__ float ScaleAt(const float* row_scale, int row) {
  return kScaledQuery ? row_scale[row] : 1.0f;
}
__device__ __forceinline__ RowState StateOf(const LogitFactor& logit, const float* row_scale,
                                            int row) {
  return MakeRowState(logit, ScaleAt(row_scale, row));
}

// How this thread's two rows of a piece end.
struct RowEnds {
  float max[2], sum[2];
  bool doubt[2];  // its weights are not precise
};

// Finishes this warp's 16 rows: sums become results, or the partial results of one of several
// splits.
__device__ __forceinline__ void FinishRows(const Params& p, const Tile& tile, int warp_row,
                                           int half, Sums& o, const RowSoftmax (&rows)[2],
                                           const float* row_scale, RowEnds& ends) {
  const int lane = threadIdx.x % 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    ends.sum[h] = QuadSum(rows[h].sum);
    RowState state = StateOf(logit, row_scale, warp_row + h * 8 + lane / 4);
    const float base = BaseOf(rows[h].max, state.factor);
    state.max = rows[h].max;
    ends.max[h] = MaxLogit(state);
    const bool precise = IsNear(base) | (ends.max[h] == -Infinity());  // no branches
    ends.doubt[h] = !(precise & IsFinite(ends.sum[h]));
  }
  float factors[2] = {1.0f, 1.0f};
  if (tile.splits == 1) {
    // Four lanes share two rows: each works out the end of one.
    const bool second = lane % 2 != 0;
    const int row = warp_row + (second ? 8 : 0) + lane / 4;
    const long long at = QueryRow(p, tile, row);
    const RowEnd end = FinishRow(p, tile, at, logit, second ? ends.max[1] : ends.max[0],
                                 second ? ends.sum[1] : ends.sum[0]);
    if (HasLse(p) && half == 0 && row < tile.num_rows && lane % 4 < 2) p.lse[at] = end.lse;
    const float factor = end.sees_nothing ? 0.0f : end.factor;
    factors[0] = __shfl_sync(kAllLanes, factor, lane & ~1);
    factors[1] = __shfl_sync(kAllLanes, factor, lane | 1);
  }
#pragma unroll
  for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[i][j] *= factors[j / 2];
  }
}

// Writes them. `staging`: the queries' tile, whose rows of this warpgroup are done with. Marks rows
// that are not finite or whose weights are not precise, and is false if there are such.
__device__ __forceinline__ bool WriteRows(const Params& p, const Tile& tile, int warp_row, int half,
                                          Sums& o, const RowEnds& ends, char* staging) {
  const int lane = threadIdx.x % 32;
  unsigned in_doubt = 0;  // lanes
  bool doubt[2];
  const auto tell = [&](int h, bool own) {
    const unsigned lanes = __ballot_sync(kAllLanes, ends.doubt[h] | own);
    in_doubt |= lanes;
    doubt[h] = (lanes >> (lane & ~3) & 15u) != 0;  // one of those that share the row
  };
  if (sizeof(Out) == 2 && tile.splits == 1) {  // whole rows leave together
    unsigned first[4], zeros[2] = {};          // or NaN
    const auto stage = [&](int i, const unsigned(&tiles)[4]) {
      StoreMatrix4(SharedAddress(staging) + PlaceInTile(warp_row + lane % 16, i + lane / 16),
                   tiles);
    };
#pragma unroll
    for (int i = 0; i < kSumTiles; i += 2) {
      unsigned tiles[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const x = o[i + j / 2] + j % 2 * 2;
        tiles[j] = Pack2<Out>(x[0], x[1]);
        zeros[j % 2] = AddTimesZero<Out>(zeros[j % 2], tiles[j]);
        if (i == 0) first[j] = tiles[j];
      }
      if (i > 0) stage(i, tiles);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tell(h, zeros[h] != 0);
      if (lane % 4 == 0 && doubt[h] && half == 0) first[h] |= 0x7fffu;  // the mark
    }
    stage(0, first);
    __syncwarp();
    const int piece = lane % kPieces, own_row = lane < kRowLanes ? lane / kPieces : 0;
    const int first_row = warp_row + own_row;
    const bool writes = lane < kRowLanes && piece < kOwnPieces;
    char* out = static_cast<char*>(p.out) + half * (kHalfDims * 2) + piece * 16;
    asm volatile("" : "+l"(out));  // else the compiler would add up each address anew
    RowWalk<kRowStep> to(p, tile, first_row);
    Vector<unsigned, 4> elements[16 / kRowStep];
#pragma unroll
    for (int i = 0; i < 16 / kRowStep; ++i) {
      elements[i] =
          LoadVector(SharedAddress(staging) + PlaceInTile(first_row + i * kRowStep, piece));
    }
#pragma unroll
    for (int i = 0; i < 16 / kRowStep; ++i, to.Next()) {
      if (writes && first_row + i * kRowStep < tile.num_rows) {
        StoreVector(out + static_cast<long long>(to.at) * (kHeadDim * 2), elements[i]);
      }
    }
  } else {  // f32
    float* const out = tile.splits > 1 ? p.partial_out : static_cast<float*>(p.out);
    RowWalk<8> walk(p, tile, warp_row + lane / 4);
#pragma unroll
    for (int h = 0; h < 2; ++h, walk.Next()) {
      const int row = warp_row + h * 8 + lane / 4;
      const long long place = tile.splits > 1 ? PartialRow(p, tile, row) : walk.at;
      float zeros = 0.0f;  // or NaN
#pragma unroll
      for (int i = 0; i < kSumTiles; ++i) {
        zeros = fmaf(o[i][2 * h + 1], 0.0f, fmaf(o[i][2 * h], 0.0f, zeros));
      }
      tell(h, zeros != 0.0f);
      if (row >= tile.num_rows) continue;
      if (lane % 4 == 0 && half == 0) {
        if (doubt[h]) o[0][2 * h] = NaN();  // the mark
        if (tile.splits > 1) {
          p.partial_max[place] = ends.max[h];
          p.partial_sum[place] = doubt[h] ? NaN() : ends.sum[h];
        }
      }
#pragma unroll
      for (int i = 0; i < kOwnPieces; ++i) {
        *reinterpret_cast<float2*>(out + place * kHeadDim + half * kHalfDims + i * 8 +
                                   lane % 4 * 2) = make_float2(o[i][2 * h], o[i][2 * h + 1]);
      }
    }
  }
  if constexpr (kHalves == 2) {  // the mark is in the first half
    SyncThreads(kGroupDone, 256);
    RowWalk<8> walk(p, tile, warp_row + lane / 4);
#pragma unroll
    for (int h = 0; h < 2; ++h, walk.Next()) {
      const int row = warp_row + h * 8 + lane / 4;
      if (half == 0 || lane % 4 != 0 || row >= tile.num_rows || !doubt[h]) continue;
      if (tile.splits > 1) {
        p.partial_sum[PartialRow(p, tile, row)] = NaN();
      } else {
        static_cast<Out*>(p.out)[static_cast<long long>(walk.at) * kHeadDim] =
            FromFloat<Out>(NaN());
      }
    }
  }
  return in_doubt == 0;
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_
