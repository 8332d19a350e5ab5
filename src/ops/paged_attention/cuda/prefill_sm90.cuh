// Prefill on Hopper: a block of three warpgroups takes pieces of work (128 query rows of a sequence
// and kv head) until none is left. One warpgroup loads, with few registers: a warp takes pieces,
// one copies their queries, one keys and one values, 128 keys a stage, by the tensor copy engine, a
// box a page; of a cache of fp8 all four load and convert (prefill_sm90_convert.cuh). Two compute,
// 64 rows each, from the last keys to the first: while a warpgroup's weights come out of its
// logits, the tensor cores do its values of the tile before, and the other warpgroup's products.
//
// What waits on what: slot_full (a piece is taken) -> query_full, keys_full -> logits ->
// keys_empty, weights, values_full -> sums -> values_empty, rows written -> query_empty,
// slot_empty.
//
// A row whose result is not finite may have met a jump of its logits that weights do not hold, and
// values that are not finite lie here as zeros where some row does not see them: such a piece is
// left to the attend launch, which does those rows again (Tile::again).
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_convert.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_softmax.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Where sums leave room, those who copy single rows, or convert, have more registers.
inline constexpr int kLoadRegisters = kHeadDim > 128 || BOXES         ? 40
                                      : kConverts && !kRoundedPrefill ? 88
                                                                      : 56,
                     kComputeRegisters = (504 - kLoadRegisters) / 2;
inline constexpr int kGroupDone = 1;  // a named barrier for each warpgroup, and the next

// Issues logits = queries * keys^T.
__device__ __forceinline__ void IssueLogits(Logits& s, unsigned queries, unsigned keys) {
  WarpgroupFence();
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    const unsigned at = (block / 4 * 1024 + block % 4 * 32) >> 4;
    WarpgroupDot<Operand, kKeys, kGroupBytes>(s, queries + at, keys + at, block > 0);
  }
  WarpgroupCommit();
}

// Issues products = weights * values in the 64 dimensions of a panel.
__device__ __forceinline__ void IssuePanel(Products& products, const Weights& weights,
                                           unsigned values, int panel) {
#pragma unroll
  for (int i = 0; i < kPanelDims / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) products[i][j] = 0.0f;
  }
  WarpgroupFence();
#pragma unroll
  for (int block = 0; block < kKeys / 16; ++block) {
    const unsigned at = values + ((panel * 1024 + block * 2 * kGroupBytes) >> 4);
    WarpgroupAdd<Operand, kPanelDims, kGroupBytes>(products, weights[block], at);
  }
  WarpgroupCommit();
}

// Issues sums += weights * values, or, if kRoundedPrefill, the first panel's products.
__device__ __forceinline__ void IssueValues(Sums& o, Products& products, const Weights& weights,
                                            unsigned values) {
  if constexpr (kRoundedPrefill) {
    IssuePanel(products, weights, values, 0);
  } else {
    WarpgroupFence();
#pragma unroll
    for (int block = 0; block < kKeys / 16; ++block) {
      const unsigned at = values + (block * 2 * kGroupBytes >> 4);
      constexpr int kDims = kHeadDim > 128 ? 128 : kHeadDim;  // of an instruction
#pragma unroll
      for (int d = 0; d < kHeadDim; d += kDims) {
        WarpgroupAdd<Operand, kDims, kGroupBytes>(o + d / 8, weights[block],
                                                  at + (d / kPanelDims * 1024 >> 4));
      }
    }
    WarpgroupCommit();
  }
}

// Waits for what IssueValues has issued, and does the rest: one panel after the other, since there
// are no registers for two.
__device__ __forceinline__ void FinishValues(Sums& o, Products& products, const Weights& weights,
                                             unsigned values) {
  if constexpr (kRoundedPrefill) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (panel > 0) IssuePanel(products, weights, values, panel);
      WarpgroupWait<0>(products);
#pragma unroll
      for (int i = 0; i < kPanelDims / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) o[panel * (kPanelDims / 8) + i][j] += products[i][j];
      }
    }
  } else {
    WarpgroupWait<0>(o);
  }
}

// What undoes the scaling of a row of queries, and how its logits become log2 units.
__device__ __forceinline__ float ScaleAt(const float* row_scale, int row) {
  return kScaledQuery ? row_scale[row] : 1.0f;
}
__device__ __forceinline__ RowState StateOf(const LogitFactor& logit, const float* row_scale,
                                            int row) {
  return MakeRowState(logit, ScaleAt(row_scale, row));
}

// Writes this warp's 16 rows: results, or the partial results of one of several splits. `staging`:
// the queries' tile, whose rows of this warpgroup are done with. Marks rows that are not finite or
// whose weights are not precise, and is false if there are such.
__device__ __forceinline__ bool WriteRows(const Params& p, const Tile& tile, int warp_row, Sums& o,
                                          const RowSoftmax (&rows)[2], const float* row_scale,
                                          char* staging) {
  const int lane = threadIdx.x % 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);

  // Finish the rows, and look for what is in doubt.
  RowWalk<8> walk(p, tile, warp_row + lane / 4);
  float doubt[2];  // 0, or NaN
  bool exists[2];
  long long place[2];  // of the row's results, in rows
#pragma unroll
  for (int h = 0; h < 2; ++h, walk.Next()) {
    const int row = warp_row + h * 8 + lane / 4;
    const float sum = QuadSum(rows[h].sum);
    RowState state = StateOf(logit, row_scale, row);
    const float base = BaseOf(rows[h].max, state.factor);
    state.max = rows[h].max;
    const float max = MaxLogit(state);
    exists[h] = row < tile.num_rows;
    RowEnd end;
    if (tile.splits > 1) {
      place[h] = PartialRow(p, tile, row);
    } else {
      place[h] = walk.at;
      end = FinishRow(p, tile, place[h], logit.factor, max, sum);
      if (p.lse != nullptr && exists[h] && lane % 4 == 0) p.lse[place[h]] = end.lse;
    }
    doubt[h] = max != -Infinity() && !IsNear(base) ? NaN() : sum * 0.0f;
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int j = 2 * h; j < 2 * h + 2; ++j) {
        if (tile.splits == 1) o[i][j] = end.Value(o[i][j]);
        doubt[h] = fmaf(o[i][j], 0.0f, doubt[h]);
      }
    }
    doubt[h] = QuadSum(doubt[h]);
    if (lane % 4 != 0) continue;
    o[0][2 * h] += doubt[h];  // the mark
    if (tile.splits > 1 && exists[h]) {
      p.partial_max[place[h]] = max;
      p.partial_sum[place[h]] = sum + doubt[h];
    }
  }

  // Write them.
  if (sizeof(Out) == 2 && tile.splits == 1) {  // whole rows leave together
#pragma unroll
    for (int i = 0; i < kOutTiles; i += 2) {
      const unsigned packed[4] = {Pack2<Out>(o[i][0], o[i][1]), Pack2<Out>(o[i][2], o[i][3]),
                                  Pack2<Out>(o[i + 1][0], o[i + 1][1]),
                                  Pack2<Out>(o[i + 1][2], o[i + 1][3])};
      StoreMatrix4(SharedAddress(staging) + PlaceInTile(warp_row + lane % 16, i + lane / 16),
                   packed);
    }
    __syncwarp();
    const int piece = lane % kPieces, first_row = warp_row + lane / kPieces;
    Out* const out = static_cast<Out*>(p.out) + piece * 8;
    RowWalk<kRowStep> to(p, tile, first_row);
#pragma unroll
    for (int i = 0; i < 16; i += kRowStep, to.Next()) {
      const uint4 elements =
          *reinterpret_cast<const uint4*>(staging + PlaceInTile(first_row + i, piece));
      if (first_row + i < tile.num_rows) {
        *reinterpret_cast<uint4*>(out + static_cast<long long>(to.at) * kHeadDim) = elements;
      }
    }
  } else {  // f32
    float* const out = tile.splits > 1 ? p.partial_out : static_cast<float*>(p.out);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!exists[h]) continue;
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        *reinterpret_cast<float2*>(out + place[h] * kHeadDim + i * 8 + lane % 4 * 2) =
            make_float2(o[i][2 * h], o[i][2 * h + 1]);
      }
    }
  }
  return __all_sync(kAllLanes, doubt[0] + doubt[1] == 0.0f);
}

// A warpgroup: computes 64 rows of each piece.
__device__ __forceinline__ void Compute(const Params& p, Shared& shared, int warp) {
  const int lane = threadIdx.x % 32, group = warp / 4, warp_row = warp * 16;
  const unsigned queries =
      MatrixAddress(SharedAddress(shared.query) + group * (kRows / 2 / 8 * kGroupBytes), 0);
  const unsigned keys = MatrixAddress(SharedAddress(shared.keys), 0);
  const unsigned values = MatrixAddress(SharedAddress(shared.values), 1024);
  constexpr unsigned kTileStep = kTileBytes >> 4, kQueryStep = Shared::kQueryBytes >> 4;
  const auto release = [&](unsigned barrier) {
    __syncwarp();
    if (lane == 0) Arrive(barrier);
  };
  Level memory;
  Level* level = &memory;
  asm volatile("" : "+l"(level));  // else the compiler would keep it in registers

  Place<kStages> key_stage, value_stage;
  Place<kQueries> query;
  for (Place<kSlots> at;; at.Next(), query.Next()) {
    // Wait for a piece.
    Wait(At(shared.slot_full, at), at.parity);
    Slot& slot = shared.slots[at.index];
    if (Uniform(slot.stop) != 0) return;
    const Tile& tile = slot.tile;
    const KeyTiles range = TilesOf(tile);
    const unsigned own_queries = queries + query.index * kQueryStep;
    const float* const row_scale = shared.row_scale[query.index];
    Logits s;
    Sums o;
    Products products;
    Weights weights;
    RowSoftmax rows[2];
    float rescale[2];
    // The loop in it also keeps the compiler from moving the wait for the values, which it takes
    // for independent of the weights, in front of their computation.
    const auto wait_keys = [&](int t) {
      if (t >= range.first) Wait(At(shared.keys_full, key_stage), key_stage.parity);
    };
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }

    // Wait for its queries, and the keys of its last tile.
    Wait(At(shared.query_full, query), query.parity);
    const bool has_rows = group * (kRows / 2) < Uniform(tile.num_rows);
    if (!has_rows) {  // the other warpgroup has the tensor cores for itself
      for (int t = range.first; t < range.end; ++t, key_stage.Next(), value_stage.Next()) {
        Wait(At(shared.keys_full, key_stage), key_stage.parity);
        release(At(shared.keys_empty, key_stage));
        Wait(At(shared.values_full, value_stage), value_stage.parity);
        release(At(shared.values_empty, value_stage));
      }
    } else if (range.first < range.end) {
      int t = range.end - 1;
      wait_keys(t);
      IssueLogits(s, own_queries, keys + key_stage.index * kTileStep);

      // Beside the first products: what the rows see.
      const LogitFactor logit = MakeLogitFactor(p, tile.head);
      float factor[2], cap_in[2];
      Visible visible[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + h * 8 + lane / 4;
        factor[h] = StateOf(logit, row_scale, row).factor;
        cap_in[h] = logit.cap_in * ScaleAt(row_scale, row);
        visible[h] = VisibleKeys(p, tile, row);
      }
      // What all rows of the warp see; beyond it keys must be masked.
      const int seen_begin = __shfl_sync(kAllLanes, visible[1].begin, 31);
      const int seen_end = __shfl_sync(kAllLanes, visible[0].end, 0);
      bool based = false;  // all rows of the warp have a maximum
      const auto weigh = [&](int t) {
        const int key0 = t * kKeys;
        if constexpr (SOFT_CAP) Cap(s, cap_in);
        if (key0 < seen_begin || key0 + kKeys > seen_end) Mask(s, key0, visible);
        if (based) return WeighByLastMaximum(s, factor, rows, rescale, ThisWarp{});
        const bool rose = WeighByMaximum(s, factor, rows, rescale, ThisWarp{});
        based = !__any_sync(kAllLanes, fminf(rows[0].max, rows[1].max) == -Infinity());
        return rose;
      };
      int in_level = 0, left = kLevelTiles;

      // The weights of that tile.
      WarpgroupWait<0>(s);
      release(At(shared.keys_empty, key_stage));
      key_stage.Next();
      weigh(t);
      PackWeights(weights, s);

      // The logits of each other tile, beside the values of the tile taken before.
      wait_keys(--t);
      for (; t >= range.first; --t) {
        // Start both products.
        HoldRegisters(o);
        IssueLogits(s, own_queries, keys + key_stage.index * kTileStep);
        Wait(At(shared.values_full, value_stage), value_stage.parity);
        IssueValues(o, products, weights, values + value_stage.index * kTileStep);

        // Softmax.
        WarpgroupWait<1>(s);
        release(At(shared.keys_empty, key_stage));
        key_stage.Next();
        const bool rose = weigh(t);

        // Wait for the values' products, and the next keys.
        HoldRegisters(s);
        wait_keys(t - 1);
        FinishValues(o, products, weights, values + value_stage.index * kTileStep);
        release(At(shared.values_empty, value_stage));
        value_stage.Next();

        // Bring weights and sums up to date.
        PackWeights(weights, s);
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
      }

      // The values of the tile taken last.
      Wait(At(shared.values_full, value_stage), value_stage.parity);
      HoldRegisters(o);
      IssueValues(o, products, weights, values + value_stage.index * kTileStep);
      FinishValues(o, products, weights, values + value_stage.index * kTileStep);
      release(At(shared.values_empty, value_stage));
      value_stage.Next();
      if (in_level != 0) FromLevel(level, factor, o, rows);
    }

    // Write the rows, and leave to attend what is in doubt.
    SyncThreads(kGroupDone + group, 128);  // the queries are read
    const bool done = WriteRows(p, tile, warp_row, o, rows, row_scale, shared.query[query.index]);
    if (!(done && slot.zeroed == 0) && lane == 0 && atomicExch(&slot.redo, 1u) == 0) {
      p.redo[atomicAdd(&p.header->num_redo, 1u)] = slot.piece;
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
    init(shared.slot_empty, (kComputeWarps + (kConverts ? kLoadWarps : 3)) * 32);
    init(shared.query_full, kConverts ? kLoadWarps * 32 : 32);
    init(shared.query_empty, kComputeWarps * 32);
    init(shared.keys_full, kConverts ? kLoadWarps : 1);
    init(shared.keys_empty, kComputeWarps);
    init(shared.values_full, kConverts ? kLoadWarps : 1);
    init(shared.values_empty, kComputeWarps);
    InitBarrier(SharedAddress(&shared.values_raw), 1);
    FenceBarrierInit();
  }
  __syncthreads();
  WaitForLaunchesBefore();
  LetNextLaunchBegin();

  // Each warp's part.
  if (warp < kLoadWarps) {
    KeepRegisters<kLoadRegisters>();
    if constexpr (kConverts) {
      LoadConverted(p, shared);
    } else if (warp == 0) {
      for (Pieces pieces; pieces.Take(p, shared);) {
      }
    } else if (warp == 1) {
      LoadKeys<false>(p, key_boxes, shared);
    } else if (warp == 2) {
      LoadKeys<true>(p, value_boxes, shared);
    } else {
      LoadQueries(p, shared);
    }
  } else {
    TakeRegisters<kComputeRegisters>();
    Compute(p, shared, warp - kLoadWarps);
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CUH_
