// The warps of the Hopper decode kernels that compute tiles of up to 16 rows: 16 keys of each stage
// each; of wide heads two or four warps have the same keys, and each a part of their dimensions, of
// which all add up the logits. Keys and values are the first operands of the products, queries and
// weights the second: logits and sums lie transposed in the registers, and eight rows cost no more
// than they must.
//
// fp8 keys and values become f16 on their way from shared memory, exactly; then head dimensions
// have another order than in 16-bit caches, in the queries as in the keys, and in the sums of
// values.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_step.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kLevelSteps = kLevelKeys / kStepKeys;
// Named barriers, one for the warps of each 16 keys: behind that of those that write.
inline constexpr int kFirstKeyBarrier = 2;

// 8x8 elements of 16 bits, transposed.
__device__ __forceinline__ unsigned Transposed(unsigned x) {
  unsigned y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Where a lane's rows of matrices lie: those of the keys, as they are, and those of the values, as
// they are transposed. Of fp8 keys the lane's own 32 dimensions, and values in pairs of dimensions.
// Those in the part's half of a panel (kHalfPanel) have places of their own.
struct LanePlaces {
  unsigned keys, values;
  unsigned half_keys, half_values;

  // Of a block of 16 dimensions.
  static __device__ __forceinline__ unsigned At(unsigned whole, unsigned half, int block) {
    if (kHalfPanel && block / 4 == kPartPanels) return half ^ block % 4 << 5;
    return block / 4 * 1024 + (whole ^ block % 4 << 5);
  }
};
__device__ __forceinline__ LanePlaces MakeLanePlaces([[maybe_unused]] int part) {
  const int lane = threadIdx.x % 32;
  if constexpr (kOneByte) {
    return {SwizzledChunk(lane / 4, lane % 4 * 2),
            lane / 8 % 2 * kKeyGroupBytes + SwizzledChunk(lane % 8, lane / 16)};
  }
  const unsigned keys = lane / 8 % 2 * kKeyGroupBytes + SwizzledChunk(lane % 8, lane / 16);
  const unsigned values = lane / 16 * kKeyGroupBytes + SwizzledChunk(lane % 8, lane / 8 % 2);
  if constexpr (!kHalfPanel) return {keys, values, 0, 0};
  return {keys, values, PlaceOfHalf(part) + (keys ^ part * 64),  // bits of a swizzled place
          PlaceOfValueHalf(part) + (values ^ ValueHalf(part) * 64)};
}

// Calls use(block, a) for each 16 head dimensions of a step's keys as first operands.
template <typename Use>
__device__ __forceinline__ void ForKeyBlocks(unsigned keys, const LanePlaces& lane, Use use) {
  if constexpr (kOneByte) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned at = keys + (lane.keys ^ half << 4);
      const uint4 x = LoadShared<uint4>(at), y = LoadShared<uint4>(at + kKeyGroupBytes);
      const unsigned low[4] = {x.x, x.y, x.z, x.w}, high[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned a[4] = {
            F8PairToF16Pair<Cache>(low[i] & 0xffffu), F8PairToF16Pair<Cache>(high[i] & 0xffffu),
            F8PairToF16Pair<Cache>(low[i] >> 16), F8PairToF16Pair<Cache>(high[i] >> 16)};
        use(half * 4 + i, a);
      }
    }
  } else {
#pragma unroll
    for (int block = 0; block < kWarpBlocks; ++block) {
      unsigned a[4];
      LoadMatrix4(a, keys + LanePlaces::At(lane.keys, lane.half_keys, block));
      use(block, a);
    }
  }
}

// The same for its values.
template <typename Use>
__device__ __forceinline__ void ForValueBlocks(unsigned values, const LanePlaces& lane, Use use) {
  if constexpr (kOneByte) {
#pragma unroll
    for (int pair = 0; pair < kWarpBlocks / 2; ++pair) {
      unsigned r[4];
      LoadMatrix4Transposed(r, values + (lane.values ^ pair << 5));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned a[4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // Bytes (key 0 dim 0, key 0 dim 1, key 1 dim 0, key 1 dim 1) -> pairs of one dimension.
          const unsigned pairs = __byte_perm(r[i * 2 + j], 0, 0x3120);
          a[2 * j] = F8PairToF16Pair<Cache>(pairs & 0xffffu);
          a[2 * j + 1] = F8PairToF16Pair<Cache>(pairs >> 16);
        }
        use(pair * 2 + i, a);
      }
    }
  } else {
#pragma unroll
    for (int block = 0; block < kWarpBlocks; ++block) {
      unsigned a[4];
      LoadMatrix4Transposed(a, values + LanePlaces::At(lane.values, lane.half_values, block));
      use(block, a);
    }
  }
}
// The head dimension of sum j of a part's block.
__device__ __forceinline__ int SumDim(int part, int block, int j) {
  const int lane = threadIdx.x % 32;
  return ValueDim(part, block) + (kOneByte ? lane / 4 * 2 + j / 2 : lane / 4 + j / 2 * 8);
}

// The query rows of a piece as second operands of the products, with the sign that makes the
// scales of the logits positive. bf16 rows over fp8 are brought into the range of f16: `unit` is
// what the logits of this thread's rows are multiples of.
template <int kTiles>
__device__ __forceinline__ void LoadQueryFragments(const char* rows, int part, bool negate,
                                                   unsigned (&q)[kWarpBlocks][kTiles][2],
                                                   float (&unit)[kTiles][2]) {
  const int lane = threadIdx.x % 32;
  rows += lane / 4 * DecodeMemory::kQueryStride;
  if (!kHalfPanel) rows += part * (kWarpDims * 2);
  const char* const own = rows + lane % 4 * (kOneByte ? 64 : 4);
  const unsigned sign = negate ? 0x80008000u : 0u;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const char* const row = own + i * 8 * DecodeMemory::kQueryStride;
#pragma unroll
    for (int block = 0; block < kWarpBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int of_block = kHalfPanel ? BlockDim(part, block) * 2 : block * 32;
        const char* const at = row + (kOneByte ? block * 8 + j * 4 : of_block + j * 16);
        q[block][i][j] = *reinterpret_cast<const unsigned*>(at) ^ sign;
      }
    }
    float up = 1.0f;
    if constexpr (kScaledQuery) {
      const auto low = [](unsigned x) { return ToFloat(Query{static_cast<unsigned short>(x)}); };
      const auto high = [&](unsigned x) { return low(x >> 16); };
      float largest = 0.0f;
#pragma unroll
      for (int j = 0; j < 2 * kWarpBlocks; ++j) {
        const unsigned x = q[j / 2][i][j % 2];
        largest = fmaxf(largest, fmaxf(fabsf(low(x)), fabsf(high(x))));
      }
      for (int other = 1; other < kDimParts; ++other) {  // the dimensions of other warps
        const char* const of = row + ((part ^ other) - part) * (kWarpDims * 2);
        for (int j = 0; j < kWarpDims / 8; ++j) {
          const unsigned x = *reinterpret_cast<const unsigned*>(of + j * 4);
          largest = fmaxf(largest, fmaxf(fabsf(low(x)), fabsf(high(x))));
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const RowScale scale = ScaleOfRow(largest);
      up = scale.up;
#pragma unroll
      for (int j = 0; j < 2 * kWarpBlocks; ++j) {
        unsigned& x = q[j / 2][i][j % 2];
        x = Pack2<Operand>(low(x) * scale.down, high(x) * scale.down);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // of another row than the lane has loaded
      unit[i][h] = kScaledQuery ? __shfl_sync(kAllLanes, up, (lane % 4 * 2 + h) * 4) : 1.0f;
    }
  }
}

// Adds up the logits of the warps that share keys, in all of them in the same order.
template <int kTiles>
__device__ __forceinline__ void AddPartsOfLogits(float (&s)[kTiles][4], int warp,
                                                 unsigned exchange) {
  if constexpr (kDimParts == 1) return;
  const int group = warp / kDimParts;
  const unsigned place = exchange + threadIdx.x % 32 * 16;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    StoreShared(place + (i * kLineWarps + warp) * 512,
                make_float4(s[i][0], s[i][1], s[i][2], s[i][3]));
  }
  SyncThreads(kFirstKeyBarrier + group, kDimParts * 32);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    float4 x[kDimParts];
#pragma unroll
    for (int part = 0; part < kDimParts; ++part) {
      x[part] = LoadShared<float4>(place + (i * kLineWarps + group * kDimParts + part) * 512);
    }
#pragma unroll
    for (int part = 1; part < kDimParts; ++part) {
      x[0].x += x[part].x, x[0].y += x[part].y, x[0].z += x[part].z, x[0].w += x[part].w;
    }
    s[i][0] = x[0].x, s[i][1] = x[0].y, s[i][2] = x[0].z, s[i][3] = x[0].w;
  }
}

// Adds a step's 16 keys and values. `exchange`: where the warp's part of the logits goes.
template <int kTiles>
__device__ __forceinline__ void AddStep(const unsigned (&q)[kWarpBlocks][kTiles][2], unsigned keys,
                                        unsigned values, const LanePlaces& lane, int warp,
                                        unsigned exchange, const float (&cap_in)[kTiles][2],
                                        bool mask, int key0, const Visible (&visible)[kTiles][2],
                                        Softmax<kTiles, kWarpBlocks>& softmax) {
  // Logits.
  float s[kTiles][4] = {};
  ForKeyBlocks(keys, lane, [&](int block, const unsigned(&a)[4]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) Mma<Operand>(s[i], a, q[block][i][0], q[block][i][1]);
  });
  AddPartsOfLogits(s, warp, exchange);

  // Softmax.
  if constexpr (SOFT_CAP) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = Capped(s[i][j], cap_in[i][j % 2]);
    }
  }
  if (mask) {
    const int first = key0 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first + j / 2 * 8;
        const Visible& seen = visible[i][j % 2];
        if (key < seen.begin || key >= seen.end) s[i][j] = -Infinity();
      }
    }
  }
  softmax.Weigh(s, OneWarp{});

  // Values times weights.
  unsigned b[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    b[i][0] = Transposed(Pack2<Operand>(s[i][0], s[i][1]));
    b[i][1] = Transposed(Pack2<Operand>(s[i][2], s[i][3]));
  }
  ForValueBlocks(values, lane, [&](int block, const unsigned(&a)[4]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) AddProducts<kRoundedDecode>(softmax.o[block][i], a, b[i]);
  });
}

// A warp's part of a piece of up to 8 * kTiles rows; leaves its sums in shared memory.
template <int kTiles>
__device__ __forceinline__ void ComputePiece(const Params& p, DecodeMemory& shared,
                                             const DecodeSlot& slot, const char* queries,
                                             Place<DecodeMemory::kStages>& stage, Place<1>& sums,
                                             int& turn, int warp) {
  const int lane = threadIdx.x % 32, group = warp / kDimParts, part = warp % kDimParts;
  const Tile tile = slot.tile;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);

  // The queries, and what the rows see.
  unsigned q[kWarpBlocks][kTiles][2];
  float unit[kTiles][2];
  LoadQueryFragments(queries, part, logit.negate, q, unit);
  const HiddenKeys hidden{SeenByAll(p, tile)};
  Visible visible[kTiles][2];
  float cap_in[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      visible[i][h] = VisibleKeys(p, tile, i * 8 + lane % 4 * 2 + h);
      cap_in[i][h] = FactorOfRow(logit.cap_in, unit[i][h]);
    }
  }
  const LanePlaces places = MakeLanePlaces(part);
  Softmax<kTiles, kWarpBlocks> softmax(logit.factor, unit);
  SoftmaxLevel<kTiles, kWarpBlocks> memory;
  SoftmaxLevel<kTiles, kWarpBlocks>* level = &memory;
  asm volatile("" : "+l"(level));  // else the compiler would keep it in registers
  bool in_level = false, found = false;

  int key0 = slot.first_key + group * kStepKeys;
  const unsigned ring = SharedAddress(shared.stages) + group * kWarpBytes + PlaceOfPart(part);
  const unsigned exchange = SharedAddress(shared.exchange);
  for (int i = 0; i < slot.stages; ++i, key0 += DecodeMemory::kStageKeys) {
    // Wait for the keys and values.
    Wait(At(shared.full, stage), stage.parity);
    if (key0 < tile.key_end && key0 + kStepKeys > tile.key_begin) {
      const unsigned keys = ring + stage.index * static_cast<int>(sizeof(DecodeMemory::Stage));
      const unsigned values = keys + kToValues;
      const bool mask = hidden.SomeOf(key0);
      if (mask) found |= hidden.CleanValues(tile, values, key0, part);
      AddStep(q, keys, values, places, warp, exchange + turn * DecodeMemory::kExchangeBytes, cap_in,
              mask, key0, visible, softmax);
      turn ^= 1;
    }
    // Free the stage.
    __syncwarp();
    if (lane == 0) Arrive(At(shared.empty, stage));
    stage.Next();
    if (i % kLevelSteps == kLevelSteps - 1 && i + 1 < slot.stages) {
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

  // Values that are not finite.
  if (__any_sync(kAllLanes, found)) {
    for (int key0 = slot.first_key + group * kStepKeys; key0 < tile.key_end;
         key0 += DecodeMemory::kStageKeys) {
      if (!hidden.SomeAreSeen(tile, key0)) continue;
      ForKeys(p, tile, key0, kStepKeys, [&](int key, bool finite, const Cache* values) {
#pragma unroll
        for (int block = 0; block < kWarpBlocks; ++block) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float x = ToFloat(values[SumDim(part, block, j)]);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              AddIfNonFinite(x, visible[i][j % 2], key, finite && softmax.sum[i][j % 2] != 0.0f,
                             softmax.o[block][i][j]);
            }
          }
        }
      });
    }
  }

  // Hand the sums over: as many rows at a time as there is room for.
  constexpr int kTogether =
      DecodeMemory::kSumRows < kTiles * 8 ? DecodeMemory::kSumRows / 8 : kTiles;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (i % kTogether == 0) Wait(At(shared.sums_empty, sums), sums.parity ^ 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i * 8 + lane % 4 * 2 + h;
      if (row >= tile.num_rows) continue;
      if (lane < 4 && part == 0) {
        // In the units that all parts of the row share.
        const float max = softmax.max[i][h];
        shared.max[row][group] = softmax.kOfRows && max != -Infinity() ? max * unit[i][h] : max;
        shared.sum[row][group] = softmax.sum[i][h];
      }
#pragma unroll
      for (int block = 0; block < kWarpBlocks; ++block) {
        const float low = softmax.o[block][i][h], high = softmax.o[block][i][h + 2];
        float* const to = shared.sums[group][row % DecodeMemory::kSumRows] + SumDim(part, block, h);
        if constexpr (kOneByte) {
          *reinterpret_cast<float2*>(to) = make_float2(low, high);
        } else {
          to[0] = low;
          to[8] = high;
        }
      }
    }
    if (i % kTogether != kTogether - 1) continue;
    Arrive(At(shared.sums_full, sums));
    sums.Next();
  }
}

__device__ __forceinline__ void ComputePieces(const Params& p, DecodeMemory& shared, int warp) {
  Place<DecodeMemory::kStages> stage;
  Place<1> sums;
  int turn = 0;  // of the exchanges, also from piece to piece
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeSlot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    Wait(At(shared.queries_full, at), at.parity);
    if (kLineRows == 8 || slot.tile.num_rows <= 8) {
      ComputePiece<1>(p, shared, slot, shared.queries[at.index], stage, sums, turn, warp);
    } else if constexpr (kLineRows > 8) {
      ComputePiece<2>(p, shared, slot, shared.queries[at.index], stage, sums, turn, warp);
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_
