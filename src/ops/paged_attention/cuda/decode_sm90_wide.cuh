// The warps of the Hopper decode kernel that compute tiles of up to 32 rows: several query tokens
// of a sequence, large groups. Two warpgroups take stages of 64 keys in turn. As in
// decode_sm90_compute.cuh keys and values are the first operands of the products, here read from
// shared memory by the matrix instructions themselves; so are the weights, which a warpgroup's
// warps put there. They are relative to the same maxima in all four, and of the sums each warp has
// 16 head dimensions of 64. In the end the second warpgroup adds its sums to those of the first.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_step.cuh"

namespace xla_gpu::paged_attention::sm90 {

static_assert(kSameType<Query, Cache>);
inline constexpr int kGroupThreads = kGroupWarps * 32;
static_assert(DecodeMemory::kStageKeys == kGroupWarps * kStepKeys);
static_assert(kGroups == 2);
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

// Puts a warp's weights where the warpgroup's products read them.
template <int kTiles>
__device__ __forceinline__ void StoreWeights(unsigned to, const float (&w)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    const unsigned r[4] = {Pack2<Operand>(w[t][0], w[t][1]), Pack2<Operand>(w[t][2], w[t][3]),
                           Pack2<Operand>(w[t + 1][0], w[t + 1][1]),
                           Pack2<Operand>(w[t + 1][2], w[t + 1][3])};
    StoreMatrix4Transposed(to + t * 1024, r);
  }
  FenceForMatrixReads();
}

// logits = keys * queries of 64 keys; does not wait.
template <int kTiles>
__device__ __forceinline__ void StartLogits(float (&s)[kTiles][4], unsigned keys, unsigned query) {
  WarpgroupFence();
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    const int at = (block / 4 * 1024 + block % 4 * 32) / 16;
    WarpgroupProduct<Operand, 8 * kTiles, kGroupBytes, kGroupBytes, false>(s, keys + at, query + at,
                                                                           block > 0);
  }
  WarpgroupCommit();
}

// sums += values * weights of 64 keys; may leave the last products under way.
template <int kTiles>
__device__ __forceinline__ void AddValues(float (&o)[kPanels][kTiles][4], unsigned values,
                                          unsigned weights) {
  const auto add = [&](float(&to)[kTiles][4], int panel, bool from_zero) {
#pragma unroll
    for (int step = 0; step < kGroupWarps; ++step) {
      const unsigned at = values + (step * 2 * kGroupBytes + panel * 1024) / 16;
      WarpgroupProduct<Operand, 8 * kTiles, kGroupBytes, 1024, true>(
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
  }
}

// Waits until no more than so many products behind the values' are under way.
template <int kPending, int kTiles>
__device__ __forceinline__ void WaitForValues(float (&o)[kPanels][kTiles][4]) {
  WarpgroupWait<kPending>(o[0]);
#pragma unroll
  for (int panel = 1; panel < kPanels; ++panel) HoldRegisters(o[panel]);
}

// A warp's part of a piece of up to 8 * kTiles rows.
template <int kTiles>
__device__ __forceinline__ void ComputeWidePiece(const Params& p, DecodeMemory& shared,
                                                 const DecodeSlot& slot, const char* queries,
                                                 Place<DecodeMemory::kStages>& stage, int& turn,
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
  const int first_stage = turn == group ? 0 : 1;  // of this warpgroup
  // Where a lane puts its row of the weights' 8x8 matrices, for every second tile.
  const unsigned lane_weights = lane / 16 * 1024 + SwizzledChunk(lane % 8, warp * 2 + lane / 8 % 2);
  int place = 0;  // of the weights, by turns
  // The other warpgroup's stages, in a ring that may have an odd number of them: this one waits for
  // each of their phases too, and frees them too, since a phase that it missed would be mistaken
  // for the one before. It does so beside its own products.
  const auto pass = [&](const Place<DecodeMemory::kStages>& others) {
    Wait(At(shared.full, others), others.parity);
    if (lane == 0) Arrive(At(shared.empty, others));
  };
  const auto release = [&](const Place<DecodeMemory::kStages>& own) {
    __syncwarp();
    if (lane == 0) Arrive(At(shared.empty, own));
  };
  // What the compiler knows to be equal in a warp beside the matrix instructions it adds to in
  // uniform registers; what it knew before the loop it would move there, once for each of them.
  const auto keys_of = [&](const Place<DecodeMemory::kStages>& own) {
    return Uniform(SharedAddress(shared.stages[own.index].keys));
  };
  float s[kTiles][4];
  const auto start_logits = [&](const Place<DecodeMemory::kStages>& own) {
    Wait(At(shared.full, own), own.parity);
    StartLogits(s, MatrixAddress(keys_of(own), 0),
                Uniform(MatrixAddress(SharedAddress(queries), 0)));
  };

  // Weighs the logits that are under way, and starts to add the stage's values.
  Place<DecodeMemory::kStages> before = stage, own = stage, next;
  const auto start_values = [&](int i) {
    const int key0 = first_key + i * DecodeMemory::kStageKeys;
    const unsigned values = keys_of(own) + DecodeMemory::kTileBytes;
    const unsigned own_weights = SharedAddress(shared.weights[group][place]) + lane_weights;
    const unsigned weights = Uniform(MatrixAddress(SharedAddress(shared.weights[group][place]), 0));
    const unsigned value = Uniform(MatrixAddress(values, 1024));
    if (i > 0) pass(before);
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

    // Weights relative to the maxima so far, in the hope that none of them rises: the barrier
    // behind the weights is also the vote whether one does.
    float sum[kTiles][2];
    const auto weigh = [&] {
      float w[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w[t][j] = s[t][j];
        sum[t][0] = softmax.sum[t][0], sum[t][1] = softmax.sum[t][1];
      }
      softmax.Exponentiate(w, sum);
      StoreWeights(own_weights, w);
    };
    if (warp == 0 && lane == 0) {
      shared.next_is_there[group][place] = HasEnded(At(shared.full, next), next.parity);
    }
    weigh();
    if (warps.Any(softmax.Rises(s))) {
      softmax.Raise(s, warps);
      weigh();
      warps.Sync();
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) softmax.sum[t][0] = sum[t][0], softmax.sum[t][1] = sum[t][1];

    // Values times weights.
    AddValues(softmax.o, value, weights);
  };

  const int stages = slot.stages;
  if (first_stage > 0) own.Next();
  if (first_stage < stages) {
    start_logits(own);
    int i = first_stage;
    for (; i + kGroups < stages; i += kGroups) {
      next = own;
      next.Next(), next.Next();
      start_values(i);
      // Behind the values the next logits, if their stage is there: else this one is freed first.
      if (shared.next_is_there[group][place] != 0) {
        start_logits(next);
        WaitForValues<1>(softmax.o);
        release(own);
      } else {
        WaitForValues<0>(softmax.o);
        release(own);
        start_logits(next);
      }
      place ^= 1;
      before = own;
      before.Next();
      own = next;
      if ((i | 1) % kLevelStages == kLevelStages - 1) {
        level->Take(softmax, !in_level);
        in_level = true;
      }
    }
    start_values(i);
    WaitForValues<0>(softmax.o);
    release(own);
    before = own;
    before.Next();
  }
  // Of the piece's last stage, unless it was this warpgroup's.
  if ((first_stage + stages) % kGroups == 0 && stages > 0) pass(before);
  stage.Skip(stages);
  turn ^= stages % kGroups;

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
  const bool first = group == 0;
  if (first) {
    Wait(At(shared.sums_empty, sums), sums.parity ^ 1);
  } else {
    Wait(At(shared.half_full, sums), sums.parity);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i * 8 + lane % 4 * 2 + h;
      if (row >= tile.num_rows) continue;
      float max = softmax.max[i][h], sum = softmax.sum[i][h], keep = 0.0f, own = 1.0f;
      if (!first) {
        const float most = fmaxf(max, shared.first_max[row]);
        const float base = most == -Infinity() ? 0.0f : most;
        keep = Exp2((shared.first_max[row] - base) * logit.factor);
        own = Exp2((max - base) * logit.factor);
        max = most;
        sum = shared.first_sum[row] * keep + sum * own;
      }
      if (warp == 0 && lane < 4) {
        (first ? shared.first_max[row] : shared.max[row][0]) = max;
        (first ? shared.first_sum[row] : shared.sum[row][0]) = sum;
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int j = h; j < 4; j += 2) {
          float& to = shared.sums[0][row][dim_of(panel, j)];
          const float x = softmax.o[panel][i][j];
          to = first ? x : to * keep + x * own;
        }
      }
    }
  }
  Arrive(first ? At(shared.half_full, sums) : At(shared.sums_full, sums));
  sums.Next();
}

__device__ __forceinline__ void ComputePieces(const Params& p, DecodeMemory& shared, int warp) {
  Place<DecodeMemory::kStages> stage;
  int turn = 0;  // whose the next stage is
  Place<1> sums;
  const int group = warp / kGroupWarps, own = warp % kGroupWarps;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeSlot& slot = shared.slots[at.index];
    const char* const queries = shared.queries[at.index];
    if (slot.stop != 0) return;
    if (ComputedRows(slot.tile.num_rows) == 16) {
      ComputeWidePiece<2>(p, shared, slot, queries, stage, turn, sums, group, own);
    } else {
      ComputeWidePiece<4>(p, shared, slot, queries, stage, turn, sums, group, own);
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_WIDE_CUH_
