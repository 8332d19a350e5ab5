// Prefill on Hopper: a block of three warpgroups takes pieces of work (128 query rows of a sequence
// and kv head; of heads of one panel it may be four, and 192) until none is left. One loads: a warp
// takes pieces, one copies their queries, one keys and one values, 128 keys a stage, by the tensor
// copy engine, a box a page; of a cache of fp8 all four load and convert
// (prefill_sm90_convert.cuh). Others compute, 64 rows each, from the last keys to the first: while
// a warpgroup's weights come out of its logits, the tensor cores do its values of the tile before,
// and the other warpgroup's products. Of head_dim 512 a piece has 64 rows: both warpgroups compute
// all its logits, and half of the sums. Of f32, of long products, each does them alone (terms.cuh).
// Of a cluster of two blocks each has half of 256 rows, and loads half of the keys for both.
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

#include "src/ops/paged_attention/cuda/prefill_sm90_convert.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_copy.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_rows.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_terms.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kThreads = PrefillThreads(kHeadDim, kRows, kConverts);
static_assert(!kTerms || (kCopied && kRoundedPrefill));
// Where sums leave room, those who copy single rows, or convert, have more registers.
inline constexpr int kLoadRegisters = kComputeGroups == 3             ? 32
                                      : kLoadWarps == 8               ? 48
                                      : kHeadDim > 128 || BOXES       ? 40
                                      : kConverts && !kRoundedPrefill ? 88
                                                                      : 56;
inline constexpr int kComputeRegisters =
    ((kThreads == 512 ? 512 : 504) - kLoadRegisters * (kLoadWarps / 4)) / kComputeGroups;
// Named barriers, one a warpgroup: of two, it may start products.
inline constexpr int kTurn = 3;
inline constexpr bool kTurns = kRows == 128 && (SOFT_CAP || kHeadDim != 64);
// Queries are done with behind a piece's last logits; else its rows leave by their place.
inline constexpr bool kFreesQueries = kTerms;
static_assert(!kFreesQueries || sizeof(Out) == 4);

// Issues logits = queries * keys^T. Of terms those of a second panel come apart, since what an
// accumulator truncates grows with what is added to it.
__device__ __forceinline__ void IssueLogits(Logits& s, Products& second, unsigned queries,
                                            unsigned keys) {
  constexpr int kSteps = kParts * kDimBlocks;
  WarpgroupFence();
#pragma unroll
  for (int panel = 0; panel * 4 < kSteps; ++panel) {
    const bool apart = kTerms && panel > 0;
    bool add = !kTerms && panel > 0;
    ForProducts<kDotTerms>([&](int i, int j) {
      const unsigned a = queries + (PanelPlace<kRows>(i * kPanels + panel) >> 4);
      const unsigned b = keys + (PanelPlace<kKeys>(j * kPanels + panel) >> 4);
#pragma unroll
      for (int step = 0; step < min(kSteps - panel * 4, 4); ++step, add = true) {
        WarpgroupDot<DotOperand, kKeys, kGroupBytes>(apart ? second : s, a + step * 2, b + step * 2,
                                                     add);
      }
    });
  }
  WarpgroupCommit();
}

// Waits for them, where nothing else is under way.
__device__ __forceinline__ void FinishLogits(Logits& s, Products& second) {
  WarpgroupWait<0>(s);
  if constexpr (kTerms && kPanels > 1) {
    HoldRegisters(second);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] += second[i][j];
    }
  }
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
  ForProducts<kValueTerms>([&](int i, int j) {
    const unsigned from = values + (PanelPlace<kKeys>(j * kPanels + panel) >> 4);
#pragma unroll
    for (int block = 0; block < kKeys / 16; ++block) {
      WarpgroupAdd<Operand, kPanelDims, kGroupBytes>(products, weights[i][block],
                                                     from + (block * 2 * kGroupBytes >> 4));
    }
  });
  WarpgroupCommit();
}

// Issues sums += weights * values of 16 keys, in the dimensions from kFrom on.
template <int kFrom = 0>
__device__ __forceinline__ void AddValues(Sums& o, const unsigned (&weights)[4], unsigned values) {
  constexpr int kLeft = kSumTiles * 8 - kFrom, kDims = kLeft < 128 ? kLeft : 128;
  WarpgroupAdd<Operand, kDims, kGroupBytes>(o + kFrom / 8, weights,
                                            values + (PanelPlace<kKeys>(kFrom / kPanelDims) >> 4));
  if constexpr (kLeft > kDims) AddValues<kFrom + kDims>(o, weights, values);
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
      AddValues(o, weights[0][block], values + (block * 2 * kGroupBytes >> 4));
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

template <bool kValue>
struct Bool {
  static constexpr bool value = kValue;
};

// A warpgroup: computes 64 rows of each piece. Where there are two tiles of queries it writes a
// piece's rows while the tensor cores do the first logits of the next one.
__device__ __forceinline__ void Compute(const Params& p, Shared& shared, int warp) {
  const int lane = threadIdx.x % 32, group = warp / 4, half = kHalves == 2 ? group : 0;
  const int warp_row = warp * 16 % kRows, first_row = warp_row / 64 * 64;  // its warpgroup's
  const int part = kQueryParts > 1 ? group : 0;
  const unsigned queries =
      MatrixAddress(SharedAddress(shared.query) + first_row / 8 * kGroupBytes, 0);
  const unsigned keys = MatrixAddress(SharedAddress(shared.keys), 0);
  const unsigned values = MatrixAddress(SharedAddress(shared.values) + half * kSliceBytes<kKeys>,
                                        kSlicePanels > 1 ? 1024 : kSliceBytes<kKeys>);
  constexpr unsigned kQueryStep = Shared::kQueryBytes >> 4, kKeyStep = Shared::kKeyBytes >> 4,
                     kValueStep = Shared::kValueBytes >> 4;
  const auto release = [&](unsigned barrier) {  // to all blocks that write there
    __syncwarp();
    if constexpr (kBlocks == 1) {
      if (lane == 0) Arrive(barrier);
    } else {
      if (lane < kBlocks) ArriveInBlock(InBlock(barrier, lane));
    }
  };
  Level memory;
  Level* level = &memory;
  if (kTwoLevels) asm volatile("" : "+l"(level));  // else the compiler would keep it in registers

  Place<kStages> key_stage, value_stage;
  Place<kQueries> query;
  Sums o;
  RowEnds ends;
  int last_slot = -1;  // whose rows are still to be written
  if (kTurns && group == 1) ArriveThreads(kTurn, 256);
  const auto write_rows = [&] {
    if (last_slot < 0) return;
    Slot& slot = shared.slots[last_slot];
    const int last_query = (query.index + kQueries - 1) % kQueries;
    if (!kFreesQueries) SyncThreads(kGroupDone + first_row / 64, 128 * kHalves);  // they are read
    const bool zeroed = slot.zeroed != 0;  // its values are here; not behind the rows' stores
    const bool done = WriteRows(p, slot.tile, warp_row, half, o, ends,
                                shared.query[last_query] + half * kSliceBytes<kRows>);
    const auto first = [&] {  // to say so, of all blocks of a cluster
      if constexpr (kBlocks == 1) return atomicExch(&slot.redo, 1u) == 0;
      return ExchangeInBlock(InBlock(SharedAddress(&slot.redo), 0), 1u) == 0;
    };
    if ((zeroed || !done) && lane == 0 && first()) {
      WaitForSchedule();
      p.redo[atomicAdd(&p.header->num_redo, 1u)] = slot.piece;  // attend does it again
      const int row = kBlocks == 1 ? 0 : slot.first_row - slot.tile.first_row;  // the piece's first
      if (slot.tile.splits > 1) atomicAdd(p.arrivals + PartialRow(p, slot.tile, 0, row), 1u);
    }
    if (!kFreesQueries) Arrive(SharedAddress(&shared.query_empty[part][last_query]));
    Arrive(SharedAddress(&shared.slot_empty[last_slot]));
  };
  // Who copies single rows does not wait for them.
  const auto wait_for = [](const auto& full, const auto& stage) {
    Wait(At(full, stage), stage.parity);
    if constexpr (!BOXES && !kConverts) FenceForMatrixReads();
  };
  for (Place<kSlots> at;; at.Next(), query.Next()) {
    if constexpr (kQueries == 1 && !kFreesQueries) write_rows();
    // Wait for a piece, its queries, and the keys of its last tile.
    Wait(At(shared.slot_full, at), at.parity);
    const Slot& slot = shared.slots[at.index];
    const bool stop = Uniform(slot.stop) != 0;
    const Tile& tile = slot.tile;
    KeyTiles range = {};
    if (!stop) {
      range = TilesOf(tile);
      Wait(At(shared.query_full[part], query), query.parity);
      if constexpr (kTerms) {
        SplitQueries<kHeadDim>(MakeLogitFactor(p, tile.head),
                               SharedAddress(shared.query[query.index]), warp_row,
                               shared.row_scale[query.index]);
        SyncThreads(kGroupDone + group, 128);
      } else if (!kConverts) {
        FenceForMatrixReads();  // who copies them does not wait for them
      }
      if (range.count > 0) wait_for(shared.keys_full, key_stage);
    }
    const unsigned own_queries = queries + query.index * kQueryStep;
    const float* const row_scale = shared.row_scale[query.index];
    Logits s;
    Products products;
    Weights weights;
    RowSoftmax rows[2];
    float rescale[2];

    // Its first logits; of whatever lies there, and unused, if it has none, so that these products
    // have no other way than to the wait for them.
    IssueLogits(s, products, own_queries, keys + key_stage.index * kKeyStep);
    if constexpr (kQueries > 1 || kFreesQueries) write_rows();
    last_slot = at.index;
#pragma unroll
    for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
    // What the rows see, those that do not exist as much as the last, beside these products.
    const LogitFactor logit = MakeLogitFactor(p, tile.head);
    const int last_row = tile.num_rows - 1;
    float factor[2], cap_in[2];
    Visible visible[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + h * 8 + lane / 4;
      factor[h] = StateOf(logit, row_scale, row).factor;
      cap_in[h] = FactorOfRow(logit.cap_in, ScaleAt(row_scale, row));
      visible[h] = SeenInTiles(p, tile, min(row, last_row));
      asm volatile("" : "+r"(visible[h].begin), "+r"(visible[h].end));  // not behind the wait
    }
    FinishLogits(s, products);
    if (stop) return;
    const auto free_queries = [&] {
      if (kFreesQueries) Arrive(At(shared.query_empty[part], query));
    };

    const bool has_rows = first_row < Uniform(tile.num_rows);
    if (!has_rows || range.count == 0) free_queries();
    if (!has_rows) {  // the other warpgroup has the tensor cores for itself
      for (int t = 0; t < range.count; ++t, key_stage.Next(), value_stage.Next()) {
        Wait(At(shared.keys_full, key_stage), key_stage.parity);
        release(At(shared.keys_empty, key_stage));
        Wait(At(shared.values_full, value_stage), value_stage.parity);
        release(At(shared.values_empty, value_stage));
      }
    } else if (range.count > 0) {
      const bool turns = kTurns && Uniform(tile.num_rows) > 64;
      int t = range.count - 1;

      // What all rows of the warp see; beyond it keys must be masked.
      const int seen_begin = __shfl_sync(kAllLanes, visible[1].begin, 31);
      const int seen_end = __shfl_sync(kAllLanes, visible[0].end, 0);
      bool based = false;  // all rows of the warp have a maximum
      const auto weigh = [&](int t) {
        const int key0 = t * kKeys;
        if constexpr (SOFT_CAP) Cap(s, cap_in);
        if (key0 < seen_begin) MaskSide<true>(s, key0, visible);
        if (key0 + kKeys > seen_end) MaskSide<false>(s, key0, visible);
        if (based) return WeighByLastMaximum<false>(s, cap_in, factor, rows, rescale);
        const bool rose = WeighByMaximum(s, factor, rows, rescale);
        based = !__any_sync(kAllLanes, fminf(rows[0].max, rows[1].max) == -Infinity());
        return rose;
      };
      // Plain tiles: all rows of the warpgroup see all their keys, and some of a tile before.
      const int plain_begin =
          Uniform((SeenInTiles(p, tile, min(first_row + 63, last_row)).begin + kKeys - 1) / kKeys);
      const int plain_end = Uniform((SeenInTiles(p, tile, first_row).end - 1) / kKeys);
      int in_level = 0, left = kLevelTiles;

      // The weights of that tile.
      const auto next_keys = [&] {
        release(At(shared.keys_empty, key_stage));
        key_stage.Next();
      };
      next_keys();
      weigh(t);
      PackWeights(weights, s);

      // The logits of each other tile, beside the values of the tile taken before.
      // Plain ones have a loop almost without branches: a jump costs as much as ten instructions.
      // That shows not with terms, for whose registers there is no room in two loops.
      --t;
      const auto step = [&](auto plain) {
        // Start both products.
        if (turns) SyncThreads(kTurn + group, 256);
        wait_for(shared.keys_full, key_stage);
        HoldRegisters(o);
        IssueLogits(s, products, own_queries, keys + key_stage.index * kKeyStep);
        // Those of terms alone: they take several times as long as what is between them.
        if constexpr (kTerms) {
          FinishLogits(s, products);
          next_keys();
        }
        wait_for(shared.values_full, value_stage);
        IssueValues(o, products, weights, values + value_stage.index * kValueStep);
        if (turns) ArriveThreads(kTurn + (group ^ 1), 256);

        // Softmax.
        if constexpr (!kTerms) {
          WarpgroupWait<1>(s);
          next_keys();
        }
        // Never, but it keeps the release in front of the weights; other kernels would spill.
        if (kBlocks == 2 && kTileDims <= 128 && !kTerms && t < -1) asm volatile("trap;");
        bool rose;
        if constexpr (plain.value) {
          if constexpr (SOFT_CAP == 2) Cap(s, cap_in);
          rose = WeighByLastMaximum<SOFT_CAP == 1>(s, cap_in, factor, rows, rescale);
        } else {
          rose = weigh(t);
        }

        // The values' wait, which the compiler takes for independent of the weights, stays behind
        // the branch in their computation.
        HoldRegisters(s);
        FinishValues(o, products, weights, values + value_stage.index * kValueStep);
        release(At(shared.values_empty, value_stage));
        value_stage.Next();

        // Bring weights and sums up to date.
        PackWeights(weights, s);
        if (__builtin_expect(rose, 0)) {
#pragma unroll
          for (int i = 0; i < kSumTiles; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
          }
        }
      };
      while (t >= 0) {
        const int seen = t - plain_begin + 1;
        const int plain = t >= plain_end ? 0 : kTwoLevels ? min(seen, left) : seen;
        if (!kTerms && plain > 0) {
          left -= plain;
          t -= plain;
#pragma unroll 1
          for (int i = plain; i > 0; --i) step(Bool<true>());
        } else {
          step(Bool<false>());
          --left;
          --t;
        }
        if (kTwoLevels && left == 0 && t >= 0) {
          ToLevel(level, in_level == 0, factor, o, rows);
          in_level = 1;
          left = kLevelTiles;
        }
      }

      // The values of the tile taken last.
      free_queries();
      wait_for(shared.values_full, value_stage);
      HoldRegisters(o);
      IssueValues(o, products, weights, values + value_stage.index * kValueStep);
      FinishValues(o, products, weights, values + value_stage.index * kValueStep);
      release(At(shared.values_empty, value_stage));
      value_stage.Next();
      if (kTwoLevels && in_level != 0) FromLevel(level, factor, o, rows);
    }
    FinishRows(p, tile, warp_row, half, o, rows, row_scale, ends);
  }
}

__device__ __forceinline__ void Prefill(const Params& p, const TensorMap& key_boxes,
                                        const TensorMap& value_boxes, char* memory) {
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  if (threadIdx.x == 32) {
    const auto init = [](const auto& barriers, int count) {
      for (const Shared::Barrier& barrier : barriers) InitBarrier(SharedAddress(&barrier), count);
    };
    // What lanes write or read themselves each of them announces.
    init(shared.slot_full, 32);
    init(shared.slot_empty, (kComputeWarps + (kConverts ? kLoadWarps : 3)) * 32);
    for (int part = 0; part < kQueryParts; ++part) {
      init(shared.query_full[part], kConverts ? kLoadWarps * 32 : 32);
      init(shared.query_empty[part], kComputeWarps / kQueryParts * 32);
    }
    constexpr int kAnnounce = kConverts ? kLoadWarps : BOXES ? 1 : 32;
    init(shared.keys_full, kAnnounce);
    init(shared.keys_empty, kComputeWarps * kBlocks);
    init(shared.values_full, kAnnounce);
    init(shared.values_empty, kComputeWarps * kBlocks);
    init(shared.values_raw, 1);
    init(shared.taken_full, 1);
    init(shared.taken_empty, 1);
    init(shared.piece_wanted, 1);
    FenceBarrierInit();
    if (BOXES) PrefetchMap(&key_boxes), PrefetchMap(&value_boxes);
  }
  TouchParams(p);
  const bool finds_first = FindsFirst(p);
  bool found = false;
  if (finds_first) {
    if (warp == kComputeWarps) found = FindFirst(p, shared);
    // What was written before the schedule, without having waited for it.
    if (threadIdx.x == 64) __threadfence();
  }
  __syncthreads();
  if constexpr (kBlocks > 1) {
    ArriveCluster();
    WaitForCluster();
  }
  if (!kBesideDecode && !finds_first) WaitForLaunchesBefore();
  LetNextLaunchBegin();
  if constexpr (kCopiesKeys) CopyKeys(p);

  // Each warp's part.
  if (warp < kComputeWarps) {
    TakeRegisters<kComputeRegisters>();
    Compute(p, shared, warp);
  } else {
    KeepRegisters<kLoadRegisters>();
    if constexpr (kConverts) {
      LoadConverted(p, shared);
    } else if (warp == kComputeWarps) {
      TakePieces(p, shared, found);
    } else if (warp == kComputeWarps + 1) {
      LoadKeys<false>(p, key_boxes, shared);
    } else if (warp == kComputeWarps + 2) {
      LoadKeys<true>(p, value_boxes, shared);
    } else {
      LoadQueries(p, shared);
    }
  }
  // So that the end of this launch is that of decode too.
  if (kBesideDecode && warp == kComputeWarps) WaitForLaunchesBefore();
  if constexpr (kBlocks > 1) SyncCluster();  // no block leaves while others write or arrive there
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CUH_
