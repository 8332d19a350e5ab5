// The warps of the Hopper decode kernel that compute tiles of up to 32 rows: several query tokens
// of a sequence, large groups. Two warpgroups take stages of 64 keys in turn. As in
// decode_sm90_compute.cuh keys and values are the first operands of the products, here read from
// shared memory by the matrix instructions themselves; so are the weights, which a warpgroup's
// warps put there. They are relative to the same maxima in all four, and of the sums each warp has
// 16 head dimensions of 64.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_step.cuh"

namespace xla_gpu::paged_attention::sm90 {

static_assert(kSameType<Query, Cache>);
inline constexpr int kGroupThreads = kGroupWarps * 32;
static_assert(DecodeMemory::kStageKeys == kGroupWarps * kStepKeys);
// A stage is always the same warpgroup's, which waits for each of its phases.
static_assert(DecodeMemory::kStages % kGroups == 0);
inline constexpr int kLevelStages = kGroups * kLevelKeys / DecodeMemory::kStageKeys;
inline constexpr int kFirstBarrier = 2;  // named barrier of the first warpgroup

// One of a warpgroup's four warps, whose weights are relative to the same maxima.
struct Warpgroup {
  int group;
  int warp;                        // in the group
  float (*of_warps)[kGroupWarps];  // [row]

  // Each group's barrier has a number that the compiler knows.
  __device__ __forceinline__ bool Any(bool x) const {
    return group == 0 ? AnyOfThreads(kFirstBarrier, kGroupThreads, x)
                      : AnyOfThreads(kFirstBarrier + 1, kGroupThreads, x);
  }
  __device__ __forceinline__ void Sync() const {
    if (group == 0) {
      SyncThreads(kFirstBarrier, kGroupThreads);
    } else {
      SyncThreads(kFirstBarrier + 1, kGroupThreads);
    }
  }
  // Tells the other warps a number of each row.
  template <int kTiles>
  __device__ __forceinline__ void Put(const float (&x)[kTiles][2]) const {
    const int lane = threadIdx.x % 32;
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) of_warps[i * 8 + lane * 2 + h][warp] = x[i][h];
    }
  }
  // Combines those of all warps, in their order.
  template <int kTiles, typename Combine>
  __device__ __forceinline__ void Take(float (&x)[kTiles][2], Combine combine) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const of = of_warps[i * 8 + threadIdx.x % 4 * 2 + h];
        x[i][h] = combine(combine(of[0], of[1]), combine(of[2], of[3]));
      }
    }
  }
  template <int kTiles>
  __device__ __forceinline__ void Max(float (&x)[kTiles][2]) const {
    Put(x);
    Sync();
    Take(x, [](float a, float b) { return fmaxf(a, b); });
  }
};

// Hides the keys that rows do not see: this thread's are `first_key` and `first_key` + 8.
template <int kTiles>
__device__ __forceinline__ void HideKeys(const int* seen_begin, const int* seen_end, int first_key,
                                         float (&s)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i * 8 + threadIdx.x % 4 * 2 + h;
      const int begin = seen_begin[row], end = seen_end[row];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int key = first_key + j * 8;
        if (key < begin || key >= end) s[i][h + 2 * j] = -Infinity();
      }
    }
  }
}

// sums += values * weights of 64 keys.
template <int kTiles>
__device__ __forceinline__ void AddValues(float (&o)[kPanels][kTiles][4], unsigned values,
                                          unsigned weights) {
  const auto add = [&](float(&to)[kTiles][4], int panel, bool from_zero) {
#pragma unroll
    for (int step = 0; step < kGroupWarps; ++step) {
      const unsigned at = values + (step * 2 * kKeyGroupBytes + panel * 1024) / 16;
      WarpgroupProduct<Operand, 8 * kTiles, kKeyGroupBytes, 1024, true>(
          to, at, weights + step * 32 / 16, !from_zero || step > 0);
    }
  };
  if constexpr (kRoundedDecode) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      float products[kTiles][4];
      WarpgroupFence();
      add(products, panel, true);
      WarpgroupCommit();
      WarpgroupWait<0>(products);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) o[panel][i][j] += products[i][j];
      }
    }
  } else {
    WarpgroupFence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) add(o[panel], panel, false);
    WarpgroupCommit();
    WarpgroupWait<0>(o[0]);
    HoldRegisters(o[kPanels - 1]);
  }
}

// A warp's part of a piece of up to 8 * kTiles rows.
template <int kTiles>
__device__ __forceinline__ void ComputeWidePiece(const Params& p, DecodeMemory& shared,
                                                 const DecodeSlot& slot, const char* queries,
                                                 Place<DecodeMemory::kStages>& stage,
                                                 Place<1>& sums, int group, int warp) {
  constexpr int kN = 8 * kTiles;
  const int lane = threadIdx.x % 32;
  const Tile tile = slot.tile;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const Warpgroup warps{group, warp, shared.of_warps[group]};

  // What the rows see.
  const HiddenKeys hidden{SeenByAll(p, tile)};
  int* const seen_begin = shared.seen_begin[group];
  int* const seen_end = shared.seen_end[group];
  for (int row = warp * 32 + lane; row < kN; row += kGroupThreads) {
    const Visible seen = VisibleKeys(p, tile, row);
    seen_begin[row] = seen.begin, seen_end[row] = seen.end;
  }
  FenceForMatrixReads();  // of the queries
  warps.Sync();

  Softmax<kTiles, kPanels> softmax(logit.factor, {});
  SoftmaxLevel<kTiles, kPanels> memory;
  SoftmaxLevel<kTiles, kPanels>* level = &memory;
  asm volatile("" : "+l"(level));  // else the compiler would keep it in registers
  bool in_level = false, found = false;

  const int first_key = slot.first_key + warp * kStepKeys;
  const int first_stage = stage.index % kGroups == group ? 0 : 1;  // of this warpgroup
  const unsigned query = Uniform(MatrixAddress(SharedAddress(queries), 0));
  const unsigned weights = Uniform(SharedAddress(shared.weights[group]));
  // Where a lane puts its row of the weights' 8x8 matrices, for every second tile.
  const unsigned lane_weights =
      weights + lane / 16 * 1024 + SwizzledChunk(lane % 8, warp * 2 + lane / 8 % 2);
  for (int i = 0; i < slot.stages; ++i) {
    if (stage.index % kGroups == group) {
      // Wait for the keys and values.
      Wait(At(shared.full, stage), stage.parity);
      if constexpr (!kBoxes) FenceForMatrixReads();
      const int key0 = first_key + i * DecodeMemory::kStageKeys;
      const unsigned keys = Uniform(SharedAddress(shared.stages[stage.index].keys));
      const unsigned values = keys + kToValues;

      // Logits.
      float s[kTiles][4];
      WarpgroupFence();
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        const int at = (block / 4 * 1024 + block % 4 * 32) / 16;
        WarpgroupProduct<Operand, kN, kKeyGroupBytes, kGroupBytes, false>(
            s, MatrixAddress(keys, 0) + at, query + at, block > 0);
      }
      WarpgroupCommit();
      const bool mask = hidden.SomeOf(key0);
      if (mask) found |= hidden.CleanValues(tile, values + warp * kWarpBytes, key0);
      WarpgroupWait<0>(s);
      if (logit.negate) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int j = 0; j < 4; ++j) s[t][j] = -s[t][j];
        }
      }

      // Softmax.
      if constexpr (SOFT_CAP) Cap(s, {logit.cap_in, logit.cap_in});
      if (mask) HideKeys(seen_begin, seen_end, key0 + lane / 4, s);
      softmax.Weigh(s, warps);
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        const unsigned r[4] = {Pack2<Operand>(s[t][0], s[t][1]), Pack2<Operand>(s[t][2], s[t][3]),
                               Pack2<Operand>(s[t + 1][0], s[t + 1][1]),
                               Pack2<Operand>(s[t + 1][2], s[t + 1][3])};
        StoreMatrix4Transposed(lane_weights + t * 1024, r);
      }
      FenceForMatrixReads();
      warps.Sync();

      // Values times weights.
      AddValues(softmax.o, MatrixAddress(values, 1024), MatrixAddress(weights, 0));

      // Free the stage.
      __syncwarp();
      if (lane == 0) Arrive(At(shared.empty, stage));
    }
    stage.Next();
    if (i % kLevelStages == kLevelStages - 1 && i + 1 < slot.stages) {
      level->Take(softmax, !in_level);
      in_level = true;
    }
  }

  // Finish the sums.
  if (in_level) level->Give(softmax);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax.sum[i][h] = ColumnReduce(softmax.sum[i][h], [](float a, float b) { return a + b; });
    }
  }
  warps.Put(softmax.sum);
  const bool any_found = warps.Any(found);
  warps.Take(softmax.sum, [](float a, float b) { return a + b; });
  const auto dim_of = [&](int panel, int j) {
    return panel * kPanelDims + warp * 16 + lane / 4 + j / 2 * 8;
  };

  // Values that are not finite.
  if (any_found) {
    for (int i = first_stage; i < slot.stages; i += kGroups) {
      for (int step = 0; step < kGroupWarps; ++step) {
        const int key0 = slot.first_key + i * DecodeMemory::kStageKeys + step * kStepKeys;
        if (!hidden.SomeAreSeen(tile, key0)) continue;
        ForKeys(p, tile, key0, kStepKeys, [&](int key, bool finite, const Cache* values) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float x = ToFloat(values[dim_of(panel, j)]);
#pragma unroll
              for (int i = 0; i < kTiles; ++i) {
                const int row = i * 8 + lane % 4 * 2 + j % 2;
                AddIfNonFinite(x, {seen_begin[row], seen_end[row]}, key,
                               finite && softmax.sum[i][j % 2] != 0.0f, softmax.o[panel][i][j]);
              }
            }
          }
        });
      }
    }
    warps.Sync();  // before another piece changes what the rows see
  }

  // Hand the sums over.
  Wait(At(shared.sums_empty, sums), sums.parity ^ 1);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i * 8 + lane % 4 * 2 + h;
      if (warp == 0 && lane < 4) {
        shared.max[row][group] = softmax.max[i][h];
        shared.sum[row][group] = softmax.sum[i][h];
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int j = h; j < 4; j += 2) {
          shared.sums[group][row][dim_of(panel, j)] = softmax.o[panel][i][j];
        }
      }
    }
  }
  Arrive(At(shared.sums_full, sums));
  sums.Next();
}

__device__ __forceinline__ void ComputePieces(const Params& p, DecodeMemory& shared, int warp) {
  Place<DecodeMemory::kStages> stage;
  Place<1> sums;
  const int group = warp / kGroupWarps, own = warp % kGroupWarps;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeSlot& slot = shared.slots[at.index];
    const char* const queries = shared.queries[at.index];
    if (slot.stop != 0) return;
    Wait(At(shared.queries_full, at), at.parity);
    if (ComputedRows(slot.tile.num_rows) == 16) {
      ComputeWidePiece<2>(p, shared, slot, queries, stage, sums, group, own);
    } else {
      ComputeWidePiece<4>(p, shared, slot, queries, stage, sums, group, own);
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_
