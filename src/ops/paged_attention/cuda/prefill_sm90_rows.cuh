// The end of a warp's rows of a piece in the Hopper prefill kernel: from sums to results, or to the
// partial results of one of several splits, and their way out.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_softmax.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kGroupDone = 1;  // a named barrier for each warpgroup, and the next

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
  float doubt[2];  // 0, or NaN
};

// Finishes this warp's 16 rows: sums become results, or the partial results of one of several
// splits.
__device__ __forceinline__ void FinishRows(const Params& p, const Tile& tile, int warp_row,
                                           int half, Sums& o, const RowSoftmax (&rows)[2],
                                           const float* row_scale, RowEnds& ends) {
  const int lane = threadIdx.x % 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  RowWalk<8> walk(p, tile, warp_row + lane / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h, walk.Next()) {
    const int row = warp_row + h * 8 + lane / 4;
    const float sum = QuadSum(rows[h].sum);
    RowState state = StateOf(logit, row_scale, row);
    const float base = BaseOf(rows[h].max, state.factor);
    state.max = rows[h].max;
    const float max = MaxLogit(state);
    float factor = 1.0f;
    if (tile.splits == 1) {
      const RowEnd end = FinishRow(p, tile, walk.at, logit.factor, max, sum);
      factor = end.sees_nothing ? 0.0f : end.factor;
      if (p.lse != nullptr && half == 0 && row < tile.num_rows && lane % 4 == 0) {
        p.lse[walk.at] = end.lse;
      }
    }
#pragma unroll
    for (int i = 0; i < kSumTiles; ++i) {
      o[i][2 * h] *= factor;
      o[i][2 * h + 1] *= factor;
    }
    ends.max[h] = max;
    ends.sum[h] = sum;
    ends.doubt[h] = max != -Infinity() && !IsNear(base) ? NaN() : sum * 0.0f;
  }
}

// Writes them. `staging`: the queries' tile, whose rows of this warpgroup are done with. Marks rows
// that are not finite or whose weights are not precise, and is false if there are such.
__device__ __forceinline__ bool WriteRows(const Params& p, const Tile& tile, int warp_row, int half,
                                          Sums& o, const RowEnds& ends, char* staging) {
  const int lane = threadIdx.x % 32;
  float doubt[2];
  if (sizeof(Out) == 2 && tile.splits == 1) {      // whole rows leave together
    unsigned packed[kSumTiles][2], zeros[2] = {};  // or NaN
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kSumTiles; ++i) {
        packed[i][h] = Pack2<Out>(o[i][2 * h], o[i][2 * h + 1]);
        zeros[h] = AddTimesZero<Out>(zeros[h], packed[i][h]);
      }
      doubt[h] = QuadSum(ends.doubt[h] + (zeros[h] != 0 ? NaN() : 0.0f));
      if (lane % 4 == 0 && doubt[h] != 0.0f && half == 0) packed[0][h] |= 0x7fffu;  // the mark
    }
#pragma unroll
    for (int i = 0; i < kSumTiles; i += 2) {
      const unsigned tiles[4] = {packed[i][0], packed[i][1], packed[i + 1][0], packed[i + 1][1]};
      StoreMatrix4(SharedAddress(staging) + PlaceInTile(warp_row + lane % 16, i + lane / 16),
                   tiles);
    }
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
      doubt[h] = ends.doubt[h];
#pragma unroll
      for (int i = 0; i < kSumTiles; ++i) {
        doubt[h] = fmaf(o[i][2 * h + 1], 0.0f, fmaf(o[i][2 * h], 0.0f, doubt[h]));
      }
      doubt[h] = QuadSum(doubt[h]);
      if (row >= tile.num_rows) continue;
      if (lane % 4 == 0 && half == 0) {
        o[0][2 * h] += doubt[h];  // the mark
        if (tile.splits > 1) {
          p.partial_max[place] = ends.max[h];
          p.partial_sum[place] = ends.sum[h] + doubt[h];
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
      if (half == 0 || lane % 4 != 0 || row >= tile.num_rows || doubt[h] == 0.0f) continue;
      if (tile.splits > 1) {
        p.partial_sum[PartialRow(p, tile, row)] = NaN();
      } else {
        static_cast<Out*>(p.out)[static_cast<long long>(walk.at) * kHeadDim] =
            FromFloat<Out>(NaN());
      }
    }
  }
  return __all_sync(kAllLanes, doubt[0] + doubt[1] == 0.0f);
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_ROWS_CUH_
