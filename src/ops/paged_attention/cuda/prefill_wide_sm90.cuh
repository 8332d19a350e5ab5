// Prefill on Hopper for head_dim 512, whose sums of 64 rows fill half of a multiprocessor's
// registers. A cluster of two blocks takes pieces of 128 rows as prefill_sm90.cuh does, 64 rows a
// block, and each key and value is read once for both. Of a tile of 64 keys each of a block's two
// warpgroups that compute has the logits of 32, whose weights both read from shared memory, and the
// sums of 256 of the head dimensions.
//
// What waits on what: as in prefill_sm90.cuh, but that chunks of keys and values are free when both
// blocks have used them, and that there is a barrier of both warpgroups behind a tile's weights.
// While a warpgroup computes weights, and waits there, the tensor cores do its values of the tile
// before; while it waits for those, its next logits.
//
// A row's weights are relative to one maximum in both warpgroups. Where it rises they tell each
// other what it is; that one rises is known from the vote that the barrier takes.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_softmax.cuh"
#include "src/ops/paged_attention/cuda/prefill_wide_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kLoadRegisters = 40, kComputeRegisters = 232;
inline constexpr int kBoth = 1;  // named barrier of the warpgroups that compute
inline constexpr int kComputeThreads = kComputeWarps * 32;
inline constexpr int kGroupDims = kHeadDim / 2;  // of a warpgroup's sums
static_assert(kOutTiles == kGroupDims / 8 && !kRoundedPrefill);

// Issues logits (+)= queries * keys^T in the dimensions of a chunk.
__device__ __forceinline__ void IssueLogits(Logits& s, unsigned queries, unsigned keys, int chunk) {
  WarpgroupFence();
#pragma unroll
  for (int block = 0; block < kGroupDims / 16; ++block) {
    const unsigned at = (block / 4 * 1024 + block % 4 * 32) >> 4;
    WarpgroupProduct<Operand, kGroupKeys, kGroupBytes, kChunkGroupBytes, false>(
        s, queries + (chunk * kBoxPanels * 1024 >> 4) + at, keys + (chunk * kChunkBytes >> 4) + at,
        chunk > 0 || block > 0);
  }
  WarpgroupCommit();
}

// Issues sums += weights * values.
__device__ __forceinline__ void IssueValues(Sums& o, unsigned weights, unsigned values) {
  WarpgroupFence();
#pragma unroll
  for (int block = 0; block < kKeys / 16; ++block) {
    WarpgroupAddWide<Operand, 1024, kChunkGroupBytes>(o, weights + (block * 32 >> 4),
                                                      values + (block * 2 * kChunkGroupBytes >> 4));
  }
  WarpgroupCommit();
}

// The two warps, of the two warpgroups, that have the same rows.
struct BothGroups {
  Shared& shared;
  int group, warp_row;
  char* weights;  // of the tile

  // Puts this warp's weights where both warpgroups read them.
  __device__ __forceinline__ void Store(const Logits& s) const {
    const int lane = threadIdx.x % 32;
    Weights packed;
    PackWeights(packed, s);
    const int row = warp_row + lane % 16;
#pragma unroll
    for (int i = 0; i < kGroupKeys / 16; ++i) {
      const int piece = group * (kGroupKeys / 8) + i * 2 + lane / 16;
      StoreMatrix4(SharedAddress(weights) + row / 8 * 1024 + SwizzledChunk(row % 8, piece),
                   packed[i]);
    }
    FenceForMatrixReads();
  }
  // The weights are there for both; true if some thread's `x` is.
  __device__ __forceinline__ bool Any(const Logits& s, bool x) const {
    Store(s);
    return AnyOfThreads(kBoth, kComputeThreads, x);
  }
  // The larger one of both warpgroups' `x` of row h.
  __device__ __forceinline__ float Max(int h, float x) const {
    const int lane = threadIdx.x % 32, row = warp_row + lane / 4 + h * 8;
    if (lane % 4 == 0) shared.row_max[group][row] = x;
    SyncThreads(kBoth, kComputeThreads);
    return fmaxf(x, shared.row_max[group ^ 1][row]);
  }
};

// Writes this warp's half of 16 rows, from `first_row` of the tile on: results, or the partial
// results of one of several splits. Rows in doubt become NaN; false if there are such.
__device__ __forceinline__ bool WriteRows(const Params& p, const Tile& tile, int first_row,
                                          int warp_row, int group, Sums& o,
                                          const RowSoftmax (&rows)[2], Shared& shared) {
  const int lane = threadIdx.x % 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const float factor = MakeRowState(logit, 1.0f).factor;

  // The sums of both warpgroups' weights; NaN where something is in doubt in either.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = QuadSum(rows[h].sum);
    const bool far = rows[h].max != -Infinity() && !IsNear(BaseOf(rows[h].max, factor));
    float doubt = far ? NaN() : sum * 0.0f;
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
      doubt = fmaf(o[i][2 * h], 0.0f, fmaf(o[i][2 * h + 1], 0.0f, doubt));
    }
    doubt = QuadSum(doubt);
    if (lane % 4 == 0) shared.row_sum[group][warp_row + lane / 4 + h * 8] = sum + doubt;
  }
  SyncThreads(kBoth, kComputeThreads);  // also: the queries are read by both

  // Finish the rows.
  bool doubted = false, exists[2];
  long long place[2];  // of the row's results, in rows
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = warp_row + lane / 4 + h * 8, of_tile = first_row + row;
    float sum = shared.row_sum[0][row] + shared.row_sum[1][row];
    sum += sum * 0.0f;
    exists[h] = of_tile < tile.num_rows;
    doubted |= exists[h] && sum != sum;
    const bool writes = exists[h] && group == 0 && lane % 4 == 0;
    if (tile.splits > 1) {
      place[h] = PartialRow(p, tile, of_tile);
      if (writes) {
        p.partial_max[place[h]] = rows[h].max;
        p.partial_sum[place[h]] = sum;
      }
      continue;
    }
    place[h] = QueryRow(p, tile, of_tile);
    const RowEnd end = FinishRow(p, tile, place[h], logit.factor, rows[h].max, sum);
    if (p.lse != nullptr && writes) p.lse[place[h]] = end.lse;
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
      o[i][2 * h] = end.Value(o[i][2 * h]);
      o[i][2 * h + 1] = end.Value(o[i][2 * h + 1]);
    }
  }

  // Write them.
  if (sizeof(Out) == 2 && tile.splits == 1) {  // whole rows leave together
    char* const staging = shared.query[0];
#pragma unroll
    for (int i = 0; i < kOutTiles; i += 2) {
      const unsigned packed[4] = {Pack2<Out>(o[i][0], o[i][1]), Pack2<Out>(o[i][2], o[i][3]),
                                  Pack2<Out>(o[i + 1][0], o[i + 1][1]),
                                  Pack2<Out>(o[i + 1][2], o[i + 1][3])};
      const int piece = group * kOutTiles + i + lane / 16;
      StoreMatrix4(SharedAddress(staging) + PlaceInTile(warp_row + lane % 16, piece), packed);
    }
    __syncwarp();
    const int piece = group * kOutTiles + lane;
    RowWalk<1> to(p, tile, first_row + warp_row);
#pragma unroll 4
    for (int i = 0; i < 16; ++i, to.Next()) {
      if (first_row + warp_row + i >= tile.num_rows) break;
      *reinterpret_cast<uint4*>(static_cast<Out*>(p.out) +
                                static_cast<long long>(to.at) * kHeadDim + piece * 8) =
          *reinterpret_cast<const uint4*>(staging + PlaceInTile(warp_row + i, piece));
    }
  } else {  // f32
    float* const out = tile.splits > 1 ? p.partial_out : static_cast<float*>(p.out);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!exists[h]) continue;
      float* const to = out + place[h] * kHeadDim + group * kGroupDims + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        *reinterpret_cast<float2*>(to + i * 8) = make_float2(o[i][2 * h], o[i][2 * h + 1]);
      }
    }
  }
  return !__any_sync(kAllLanes, doubted);
}

// A warpgroup: the logits of half of the keys, and half of the dimensions of the sums, of the
// block's rows of each piece.
__device__ __forceinline__ void Compute(const Params& p, Shared& shared, int warp) {
  const int lane = threadIdx.x % 32, group = warp / 4, warp_row = warp % 4 * 16;
  const int first_row = BlockRank() * kBlockRows;
  const unsigned queries = MatrixAddress(SharedAddress(shared.query), 0);
  const unsigned keys =
      MatrixAddress(SharedAddress(shared.keys) + group * (kGroupKeys / 8 * kChunkGroupBytes), 0);
  const unsigned values = MatrixAddress(SharedAddress(shared.values[group]), 1024);
  const unsigned weights = MatrixAddress(SharedAddress(shared.weights), 0);
  // In both blocks.
  const auto release = [&](unsigned long long& barrier) {
    __syncwarp();
    if (lane == 0) Arrive(SharedAddress(&barrier));
    if (lane == 1) ArriveInBlock(InBlock(&barrier, BlockRank() ^ 1));
  };
  Level memory;
  Level* level = &memory;
  asm volatile("" : "+l"(level));  // else the compiler would keep it in registers

  unsigned keys_parity = 0, values_parity = 0;
  int turn = 0;  // of the weights' places
  Place<kQueries> query;
  for (Place<kSlots> at;; at.Next(), query.Next()) {
    // Wait for a piece, and its queries.
    Wait(At(shared.slot_full, at), at.parity);
    Slot& slot = shared.slots[at.index];
    if (Uniform(slot.stop) != 0) return;
    const Tile& tile = slot.tile;
    const KeyTiles range = TilesOf(tile);
    Wait(At(shared.query_full, query), query.parity);
    const bool has_rows = first_row < Uniform(tile.num_rows);
    if (!has_rows) {  // the other block has
      for (int t = range.first; t < range.end; ++t) {
        for (int i = 0; i < kChunks; ++i) {
          Wait(SharedAddress(&shared.keys_full[i]), keys_parity);
          release(shared.keys_empty[i]);
        }
        Wait(SharedAddress(&shared.values_full[group]), values_parity);
        release(shared.values_empty[group]);
        keys_parity ^= 1, values_parity ^= 1;
      }
      Arrive(At(shared.query_empty, query));
      Arrive(At(shared.slot_empty, at));
      continue;
    }

    Logits s;
    Sums o;
    RowSoftmax rows[2];
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
    if (range.first < range.end) {
      const auto issue_logits = [&] {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          Wait(SharedAddress(&shared.keys_full[i]), keys_parity);
          IssueLogits(s, queries, keys, i);
        }
        keys_parity ^= 1;
      };
      int t = range.end - 1;
      issue_logits();

      // Beside the first products: what the rows see.
      const LogitFactor logit = MakeLogitFactor(p, tile.head);
      float factor[2], cap_in[2], rescale[2];
      Visible visible[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[h] = MakeRowState(logit, 1.0f).factor;
        cap_in[h] = logit.cap_in;
        visible[h] = VisibleKeys(p, tile, first_row + warp_row + h * 8 + lane / 4);
      }
      const int seen_begin = __shfl_sync(kAllLanes, visible[1].begin, 31);
      const int seen_end = __shfl_sync(kAllLanes, visible[0].end, 0);
      bool based = false;  // all rows of the block have a maximum
      // The weights of tile t, for both warpgroups; true if a maximum rose.
      const auto weigh = [&] {
        const int key0 = t * kKeys + group * kGroupKeys;
        if constexpr (SOFT_CAP) Cap(s, cap_in);
        if (key0 < seen_begin || key0 + kGroupKeys > seen_end) Mask(s, key0, visible);
        const BothGroups groups{shared, group, warp_row, shared.weights[turn]};
        if (based) {
          const bool rose = WeighByLastMaximum(s, factor, rows, rescale, groups);
          if (rose) {  // in the whole block
            groups.Store(s);
            SyncThreads(kBoth, kComputeThreads);
          }
          return rose;
        }
        const bool rose = WeighByMaximum(s, factor, rows, rescale, groups);
        based = !groups.Any(s, fminf(rows[0].max, rows[1].max) == -Infinity());
        return rose;
      };
      // The logits of the next tile, if there is one, and the values of this one.
      const auto issue_next_logits = [&] {
        if (t > range.first) return issue_logits();
        for (int i = 0; i < kChunks; ++i) WarpgroupCommit();  // as many groups
      };
      const auto issue_values = [&] {
        Wait(SharedAddress(&shared.values_full[group]), values_parity);
        values_parity ^= 1;
        IssueValues(o, weights + (turn * Shared::kWeightBytes >> 4), values);
        turn = turn + 1 == Shared::kWeights ? 0 : turn + 1;
      };
      int in_level = 0, left = kLevelTiles;

      // The weights of the last tile.
      WarpgroupWait<1>();
      release(shared.keys_empty[0]);
      WarpgroupWait<0>(s);
      release(shared.keys_empty[1]);
      weigh();
      HoldRegisters(o);
      issue_next_logits();
      issue_values();

      // Those of each other tile beside the values of the one taken before.
      while (t > range.first) {
        --t;
        WarpgroupWait<2>();
        release(shared.keys_empty[0]);
        WarpgroupWait<1>(s);
        release(shared.keys_empty[1]);
        const bool rose = weigh();
        issue_next_logits();
        WarpgroupWait<kChunks>(o);
        release(shared.values_empty[group]);
        if (rose) {
#pragma unroll
          for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
          }
        }
        if (--left == 0) {
          ToLevel(level, in_level == 0, factor, o, rows);
          in_level = 1;
          left = kLevelTiles;
        }
        issue_values();
      }
      WarpgroupWait<0>(o);
      release(shared.values_empty[group]);
      if (in_level != 0) FromLevel(level, factor, o, rows);
    }

    // Write the rows, and leave to attend what is in doubt.
    const bool done = WriteRows(p, tile, first_row, warp_row, group, o, rows, shared);
    if (!(done && slot.zeroed == 0) && lane == 0 && atomicExch(&slot.redo, 1u) == 0) {
      p.redo[atomicAdd(&p.header->num_redo, 1u)] =
          slot.piece | static_cast<unsigned>(BlockRank()) * kSecondHalf;
      if (tile.splits > 1) atomicAdd(p.arrivals + PartialRow(p, tile, 0, 0), 1u);
    }

    // Free the piece.
    Arrive(At(shared.query_empty, query));
    Arrive(At(shared.slot_empty, at));
  }
}

__device__ __forceinline__ void Prefill(const Params& p, const TensorMap& key_boxes,
                                        const TensorMap& value_boxes, char* memory) {
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    const auto init = [](const auto& barriers, int count) {
      for (const Shared::Barrier& barrier : barriers) InitBarrier(SharedAddress(&barrier), count);
    };
    // What lanes write or read themselves each of them announces.
    init(shared.slot_full, 32);
    init(shared.slot_empty, (kComputeWarps + 3) * 32);
    init(shared.piece_full, 1);
    init(shared.piece_empty, 1);
    init(shared.query_full, 32);
    init(shared.query_empty, kComputeWarps * 32);
    init(shared.keys_full, 1);
    init(shared.keys_empty, kPieceBlocks * kComputeWarps);
    init(shared.values_full, 1);
    init(shared.values_empty, kPieceBlocks * kComputeWarps / 2);
    init(shared.values_raw, 1);
    FenceBarrierInit();
  }
  SyncCluster();
  WaitForLaunchesBefore();
  LetNextLaunchBegin();

  // Each warp's part.
  if (warp < kLoadWarps) {
    KeepRegisters<kLoadRegisters>();
    if (warp == 0) {
      TakePieces(p, shared);
    } else if (warp == 1) {
      LoadChunks<false>(p, key_boxes, shared);
    } else if (warp == 2) {
      LoadChunks<true>(p, value_boxes, shared);
    } else {
      LoadQueries(p, shared);
    }
  } else {
    TakeRegisters<kComputeRegisters>();
    Compute(p, shared, warp - kLoadWarps);
  }
  SyncCluster();  // no block leaves while the other tells its barriers
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WIDE_SM90_CUH_
