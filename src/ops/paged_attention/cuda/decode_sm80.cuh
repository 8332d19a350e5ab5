// Few query rows of a sequence (those of a kv head's group, up to 16) against a long range of keys:
// bound by memory. Each warp runs alone over every fourth 16 keys with its own ring of stages, so
// that no barrier stalls the copies; at the end the four partial softmaxes are merged. Of wide
// heads two warps do that, over every other 16 keys, each with a ring of its own dimensions.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM80_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM80_CUH_

#include "src/ops/paged_attention/cuda/non_finite.cuh"
#include "src/ops/paged_attention/cuda/token_scales_sm80.cuh"

namespace xla_gpu::paged_attention {

inline constexpr int kMostStages = kTilesBytes / kAttendWarps / kStageBytes;
inline constexpr int kStages = kMostStages < 6 ? kMostStages : 6;
static_assert(kStages >= 2, "the tiles are too small for decoding");
// Of a row of partial results: eight floats more than the data, so that rows start in other banks.
inline constexpr int kMergeStride = kOwnDims + 8;
static_assert(kDecodeTileRows * kMergeStride * 4 <= kStages * kStageBytes);
inline constexpr int kStepKeys = kGroups * kDecodeKeys;  // of all warps
static_assert(kSplitTokens % kStepKeys == 0);
inline constexpr int kCarrySteps = kTileCarryKeys / (kGroups < 2 ? 1 : 2) / kDecodeKeys;
static_assert(kCarrySteps * kStepKeys >= kTileCarryKeys);
inline constexpr int kOwnScaleAt = kOwnStride - 16;  // of a row
// Copies of a row by one warp.
inline constexpr int kOwnChunks =
    kParts == 1 ? kChunks : kOwnDims * static_cast<int>(sizeof(Cache)) / kChunk;

struct DecodeShared {
  float max[kDecodeTileRows][kGroups];
  float sum[kDecodeTileRows][kGroups];
  bool changes[kDecodeTileRows][kAttendWarps];  // not so: all warps find that the row stays
};

// Two neighbouring elements of a query row; zeros from its end on.
__device__ __forceinline__ unsigned LoadQueryPair(const Query* row, int d) {
  if constexpr (kHeadDim % 2 == 0) {
    return d < kHeadDim ? *reinterpret_cast<const unsigned*>(row + d) : 0u;
  } else {
    const auto* words = reinterpret_cast<const unsigned short*>(row);
    const unsigned low = d < kHeadDim ? words[d] : 0u;
    const unsigned high = d + 1 < kHeadDim ? words[d + 1] : 0u;
    return low | high << 16;
  }
}

// Starts loading the tile's query rows as the A operands of all blocks of 16 head dimensions, but
// for PrepareQuery. Straight into registers: nothing waits for them before the first keys do.
__device__ __forceinline__ void LoadQueryFragments(const Params& p, const Tile& tile,
                                                   QueryOperand (&q)[kDimBlocks]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + h * 8;
    const bool exists = row < tile.num_rows;
    const Query* from = static_cast<const Query*>(p.query);
    if (exists) from += QueryRow(p, tile, row) * kHeadDim;
#pragma unroll
    for (int block = 0; block < kDimBlocks; ++block) {
      // The order of dimensions in a block is that of the keys: see mma_tile.cuh.
      if constexpr (kSplit) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int d = FirstDim() + block * 16 + i * 4 + lane % 4;
          q[block].x[i / 2][h + i % 2 * 2] =
              exists && d < kHeadDim ? reinterpret_cast<const unsigned*>(from)[d] : 0u;
        }
        continue;
      }
      const int d = FirstDim() + block * 16 + lane % 4 * (kOneByte ? 4 : 2);
      uint2 x = make_uint2(0, 0);
      if constexpr (kOneByte && kHeadDim % 4 == 0) {
        if (exists && d < kHeadDim) x = *reinterpret_cast<const uint2*>(from + d);
      } else if (exists) {
        x = make_uint2(LoadQueryPair(from, d), LoadQueryPair(from, d + (kOneByte ? 2 : 8)));
      }
      q[block].x[0][h] = x.x;
      q[block].x[0][h + 2] = x.y;
    }
  }
}

// Turns the loaded rows into operands: gives the factor of each of the thread's two rows if
// kScaledQuery.
__device__ __forceinline__ void PrepareQuery(bool negate, unsigned exchange,
                                             QueryOperand (&q)[kDimBlocks], float (&scale)[2]) {
  const unsigned sign = negate ? kQuerySigns : 0u;
  const auto low = [](unsigned x) { return ToFloat(BF16{static_cast<unsigned short>(x)}); };
  const auto high = [&](unsigned x) { return low(x >> 16); };
  float largest[1][4] = {};  // of each row
  if constexpr (kScaledQuery) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& own = largest[0][h];
#pragma unroll
      for (int i = 0; i < 2 * kDimBlocks; ++i) {
        const unsigned x = q[i / 2].x[0][h + i % 2 * 2];
        own = fmaxf(own, fmaxf(fabsf(low(x)), fabsf(high(x))));
      }
      own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, 1));
      own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, 2));
    }
    CombineParts(largest, exchange, [](float a, float b) { return fmaxf(a, b); });
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    scale[h] = 1.0f;
    if constexpr (kScaledQuery) {
      const RowScale row_scale = ScaleOfRow(largest[0][h]);
      scale[h] = row_scale.up;
#pragma unroll
      for (int i = 0; i < 2 * kDimBlocks; ++i) {
        unsigned& x = q[i / 2].x[0][h + i % 2 * 2];
        x = Pack2<Operand>(low(x) * row_scale.down, high(x) * row_scale.down);
      }
    }
#pragma unroll
    for (int block = 0; block < kDimBlocks; ++block) {
#pragma unroll
      for (auto& x : q[block].x) x[h] ^= sign, x[h + 2] ^= sign;
    }
  }
#pragma unroll
  for (QueryOperand& operand : q) operand.SplitWords();
}

// Starts the copies of kDecodeKeys keys and values, which lie `to_values` bytes further. As many
// lanes hold the keys' offsets; keys whose offset is negative become zeros. Every instruction here
// delays an item's first keys.
__device__ __forceinline__ void CopyStage(long long offset, const char* keys, long long to_values,
                                          unsigned shared_keys) {
  constexpr int kCopies = kDecodeKeys * kOwnChunks;
  // If a lane's chunk is the same in all of its keys, all else is the same but for constants.
  constexpr bool kSameChunk = 32 % kOwnChunks == 0;
  const int lane = threadIdx.x % 32;
  const int lane_key = kSameChunk ? lane / kOwnChunks : 0;
  const unsigned exist = __ballot_sync(kAllLanes, offset >= 0) >> lane_key;
  const long long own = reinterpret_cast<long long>(keys) + (offset < 0 ? 0 : offset);
  shared_keys += lane_key * kOwnStride;
#pragma unroll
  for (int base = 0; base < kCopies; base += 32) {
    const int key =
        kSameChunk ? base / kOwnChunks : (base + lane) / kOwnChunks;  // from lane_key on
    const int chunk = kSameChunk ? lane % kOwnChunks : (base + lane) % kOwnChunks;
    // The last part may lack some of the padded row's.
    const bool has = kParts * kOwnChunks == kChunks || OwnPart() * kOwnChunks + chunk < kChunks;
    const long long from = __shfl_sync(kAllLanes, own, (lane_key + key) % kDecodeKeys);
    if (kCopies % 32 == 0 || base + lane < kCopies) {
      const bool read = has && (exist >> key & 1u) != 0;
      const unsigned shared = shared_keys + key * kOwnStride;
      CopyChunk(shared, reinterpret_cast<const char*>(from), chunk, read);
      CopyChunk(shared + kDecodeKeys * kOwnStride, reinterpret_cast<const char*>(from + to_values),
                chunk, read);
    }
  }
}

// Adds kDecodeKeys keys, in shared memory, to the warp's running softmax.
__device__ __forceinline__ void AddKeys(const Params& p, const Tile& tile, bool negate,
                                        const QueryOperand (&q)[kDimBlocks], unsigned shared_keys,
                                        unsigned exchange, int key0, const Visible (&visible)[2],
                                        const float (&cap_in)[2], RowState (&rows)[2],
                                        float (&o)[kOutTiles][4]) {
  // Logits.
  float s[kDecodeKeys / 8][4] = {};
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    unsigned b[4];
    KeyFragment<kOwnStride>(b, shared_keys, block);
    AddLogits(s, 0, q[block], b);
  }
  if constexpr (kSplit) {
    RepairLogits<kOwnStride>(s, shared_keys, [&](int h, int d) {
      const int row = static_cast<int>(threadIdx.x) % 32 / 4 + h * 8;
      if (row >= tile.num_rows) return 0.0f;
      const float x =
          static_cast<const float*>(p.query)[QueryRow(p, tile, row) * kHeadDim + FirstDim() + d];
      return negate ? -x : x;
    });
  }
  AddParts(s, exchange);
  ScaleLogits<kOwnStride>(s, shared_keys + kOwnScaleAt);

  // Softmax.
  if constexpr (SOFT_CAP) Cap(s, cap_in);
  Mask(s, key0, visible);
  float rescale[2];
  Weigh(s, rows, rescale);
  // Most steps raise no maximum, and multiplying by 1 changes no bit.
  if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
    }
  }

  // Weights times values.
  const unsigned shared_values = shared_keys + kDecodeKeys * kOwnStride;
  ScaleWeights<kOwnStride>(s, shared_values + kOwnScaleAt, key0, visible);
  WeightOperand a;
  WeightFragment(a, s, 0);
#pragma unroll
  for (int pair = 0; pair < kOutTiles / kValueTiles; ++pair) {
    unsigned b[kValueTiles][2];
    ValueFragment<kOwnStride>(b, shared_values, pair);
#pragma unroll
    for (int tile = 0; tile < kValueTiles; ++tile) {
      AddProducts<kRoundedDecode>(o[pair * kValueTiles + tile], a, b[tile]);
    }
  }
}

// Whether a row stays as the prefill launch has written it (Tile::again), by what this warp has:
// the sums of its keys and dimensions are finite, and the row is not marked.
__device__ __forceinline__ bool StaysAsWritten(const Params& p, const Tile& tile, int row,
                                               const float (&o)[kOutTiles][4], int half,
                                               float sum) {
  float doubt = sum * 0.0f;  // 0, or NaN
#pragma unroll
  for (int t = 0; t < kOutTiles; ++t) {
    doubt = fmaf(o[t][2 * half], 0.0f, fmaf(o[t][2 * half + 1], 0.0f, doubt));
  }
  if (row < tile.num_rows) {
    doubt +=
        0.0f * (tile.splits > 1
                    ? __ldcg(p.partial_sum + PartialRow(p, tile, row))
                    : ToFloat(static_cast<const Out*>(p.out)[QueryRow(p, tile, row) * kHeadDim]));
  }
  return QuadSum(doubt) == 0.0f;
}

// Merges the warps' results, in a fixed order, and writes the rows. Each warp puts those rows
// that exist where its stages were.
__device__ __forceinline__ void MergeWarps(const Params& p, const Tile& tile, char* shared,
                                           DecodeShared& extra, const RowState (&rows)[2],
                                           const float (&o)[kOutTiles][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Put the warp's part into shared memory.
  const auto merge_row = [&](int w, int row) {
    return reinterpret_cast<float*>(shared + w * (kStages * kStageBytes)) + row * kMergeStride;
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + h * 8;
    const float sum = QuadSum(rows[h].sum);
    if (BEHIND_PREFILL && tile.again != 0) {
      const bool stays = StaysAsWritten(p, tile, row, o, h, sum);
      if (lane % 4 == 0) extra.changes[row][warp] = !stays;
    }
    if (row >= tile.num_rows) continue;
    if (lane % 4 == 0 && OwnPart() == 0) {
      extra.max[row][Group()] = MaxLogit(rows[h]);
      extra.sum[row][Group()] = sum;
    }
    float* to = merge_row(warp, row);
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      if constexpr (kSplit) {  // four tiles hold eight neighbours
        if (t % 4 != 0) continue;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = 2 * h + c;
          *reinterpret_cast<float4*>(to + OwnDimOf(t, c)) =
              make_float4(o[t][e], o[t + 1][e], o[t + 2][e], o[t + 3][e]);
        }
      } else if constexpr (!kOneByte) {
        *reinterpret_cast<float2*>(to + OwnDimOf(t, 0)) = make_float2(o[t][2 * h], o[t][2 * h + 1]);
      } else if (t % 2 == 0) {  // two tiles hold four neighbours
        *reinterpret_cast<float4*>(to + OwnDimOf(t, 0)) =
            make_float4(o[t][2 * h], o[t + 1][2 * h], o[t][2 * h + 1], o[t + 1][2 * h + 1]);
      }
    }
  }
  __syncthreads();

  // Merge the groups' sums, and write: a thread some elements of a row.
  constexpr int kVector = kHeadDim % 4 == 0 ? 4 : 1;
  constexpr int kVectors = kHeadDim / kVector;  // of a row
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
#pragma unroll 1
  for (int i = threadIdx.x; i < tile.num_rows * kVectors; i += kAttendThreads) {
    const int row = i / kVectors, d = i % kVectors * kVector;
    const int part = kParts == 1 ? 0 : d / kOwnDims;
    if (BEHIND_PREFILL && tile.again != 0) {
      bool changes = false;
#pragma unroll
      for (const bool of_warp : extra.changes[row]) changes |= of_warp;
      if (!changes) continue;
    }
    float factors[kGroups];
    const bool sees =
        WeighWarps(p, tile, row, extra.max[row], extra.sum[row], logit, d == 0, factors);
    Vector<float, kVector> value = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float* from = merge_row(g * kParts + part, row) + d - part * kOwnDims;
      const auto x = *reinterpret_cast<const Vector<float, kVector>*>(from);
#pragma unroll
      for (int j = 0; j < kVector; ++j) value.x[j] += x.x[j] * factors[g];
    }
    if (tile.splits > 1) {
      float* to = p.partial_out + PartialRow(p, tile, row) * kHeadDim + d;
      *reinterpret_cast<Vector<float, kVector>*>(to) = value;
    } else {
      Vector<Out, kVector> out;
#pragma unroll
      for (int j = 0; j < kVector; ++j) out.x[j] = FromFloat<Out>(sees ? value.x[j] : 0.0f);
      Out* to = static_cast<Out*>(p.out) + QueryRow(p, tile, row) * kHeadDim + d;
      *reinterpret_cast<Vector<Out, kVector>*>(to) = out;
    }
  }
}

// True if the item must be run again, carefully: only f32 may.
template <typename FetchNext>
__device__ __forceinline__ bool RunDecode(const Params& p, const Tile& tile, bool careful,
                                          FetchNext fetch_next, char* shared, DecodeShared& extra) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const char* keys =
      p.k_cache + tile.head * p.head_stride + FirstDim() * static_cast<int>(sizeof(Cache));
  const long long to_values =
      reinterpret_cast<long long>(p.v_cache) - reinterpret_cast<long long>(p.k_cache);

  // The warp's steps: blocks of kStepKeys keys, of which it takes its 16.
  const int first = tile.key_begin / kStepKeys;
  const int end = tile.key_end > tile.key_begin ? (tile.key_end - 1) / kStepKeys + 1 : first;
  const auto key_of = [&](int step) { return step * kStepKeys + Group() * kDecodeKeys; };
  const auto page_of = [&](int step) {
    return lane < kDecodeKeys && step < end ? PageOf(p, tile, key_of(step) + lane) : -1;
  };
  int pages[kStages];
#pragma unroll
  for (int i = 0; i < kStages; ++i) pages[i] = page_of(first + i);

  // Start loading the queries, and the first stages.
  QueryOperand q[kDimBlocks];
  LoadQueryFragments(p, tile, q);

  const unsigned ring = SharedAddress(shared) + warp * (kStages * kStageBytes);
  const unsigned exchange = SharedAddress(shared) + kTilesBytes;
  const auto copy = [&](int step, int stage, int page) {
    const int key = key_of(step) + lane;
    const long long offset = lane < kDecodeKeys && step < end ? KeyOffset(p, tile, key, page) : -1;
    if (step < end) CopyStage(offset, keys, to_values, ring + stage * kStageBytes);
    if (kTokenScales && lane < kDecodeKeys && step < end) {
      CopyTokenScales(p, offset < 0 ? -1 : TokenScaleIndex(p, tile, key, page),
                      ring + stage * kStageBytes + lane * kOwnStride + kOwnScaleAt,
                      kDecodeKeys * kOwnStride);
    }
    CommitCopies();  // also an empty group, so that counting them tells the stage
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy(first + i, i, pages[i]);
  int page = pages[kStages - 1];
  fetch_next();

  // Prepare the rows.
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  float query_scale[2];
  PrepareQuery(logit.negate, exchange + 2 * kExchangeTile, q, query_scale);
  RowState rows[2];
  Visible visible[2];
  float cap_in[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    visible[h] = VisibleKeys(p, tile, lane / 4 + h * 8);
    rows[h] = MakeRowState(logit, query_scale[h]);
    cap_in[h] = FactorOfRow(logit.cap_in, query_scale[h]);
  }

  // Steps that have keys which some row does not see; there are none if all are of one token.
  const Visible all = SeenByAll(p, tile);
  const auto has_hidden = [&](int step) {
    const int key = key_of(step);
    return (kSplit && careful) || (key < all.begin && all.begin > tile.key_begin) ||
           (key + kDecodeKeys > all.end && all.end < tile.key_end);
  };
  bool found = false;

  const bool carries = end - first > kCarrySteps;
  const auto carry = [&] { return MakeCarry(p, kAttendThreads, kCarryFloats); };
  float o[kOutTiles][4] = {};
  int stage = 0;
  for (int step = first; step < end; ++step) {
    // Start loading a stage ahead.
    const int ahead = step + kStages - 1;
    copy(ahead, stage == 0 ? kStages - 1 : stage - 1, page);
    page = page_of(ahead + 1);

    // Wait for the keys.
    WaitCopies<kStages - 1>();
    __syncwarp();
    if (has_hidden(step)) {
      found |= ZeroNonFinite<kDecodeKeys, kOwnDims * sizeof(Cache), kOwnStride>(
          ring + stage * kStageBytes + kDecodeKeys * kOwnStride, lane, 32);
      __syncwarp();
    }
    AddKeys(p, tile, logit.negate, q, ring + stage * kStageBytes,
            exchange + (step - first) % 2 * (2 * kExchangeTile), key_of(step), visible, cap_in,
            rows, o);
    __syncwarp();  // before the stage is written again
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (carries && ((step - first) % kCarrySteps == kCarrySteps - 1 || step + 1 == end)) {
      PutCarry(carry(), 0, step - first < kCarrySteps, rows, o);
    }
  }

  // Finish the sums.
  WaitCopies<0>();
  if (carries) TakeCarry(carry(), 0, rows, o);
  if constexpr (kSplit) {
    const bool exists[2] = {lane / 4 < tile.num_rows, lane / 4 + 8 < tile.num_rows};
    if (!careful && __syncthreads_or(InDoubt(o, exists)) != 0) return true;
  }
  if (__any_sync(kAllLanes, found)) {
    for (int step = first; step < end; ++step) {
      if (has_hidden(step)) AddNonFinite(p, tile, key_of(step), kDecodeKeys, visible, rows, o);
    }
  }
  MergeWarps(p, tile, shared, extra, rows, o);
  return false;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM80_CUH_
