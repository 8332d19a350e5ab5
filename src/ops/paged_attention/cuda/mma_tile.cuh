// Shared-memory tiles and tensor-core fragments: how queries, keys and values of each cache type
// become operands of mma.m16n8k16, those of f32 of mma.m16n8k8 (see split.cuh).
//
// 16-bit caches are used as they are. fp8 caches stay fp8 in shared memory and become f16, exactly,
// in registers; then the order of head dimensions within a block of 16 is permuted, the same way in
// query and key (a dot product does not care), and undone where the output is written:
//   fp8 lane t of a quad holds dims 4t..4t+3 of a block, 16-bit lane t holds 2t, 2t+1, 2t+8, 2t+9.
// f32 is loaded as words: of a block lane t holds dims t, t+4, t+8, t+12. A lane reads four
// neighbours of a value at once, so that its four accumulator tiles hold every fourth dimension:
// those that it has of 32 are 8t..8t+7. Of a step of eight keys its operands are keys 2t and 2t+1,
// the two whose logits it holds.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_MMA_TILE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_MMA_TILE_CUH_

#include "src/ops/paged_attention/cuda/attend.cuh"
#include "src/ops/paged_attention/cuda/attend_shared.cuh"
#include "src/ops/paged_attention/cuda/split.cuh"

namespace xla_gpu::paged_attention {

using Query = QUERY_TYPE;
using Cache = CACHE_TYPE;
using Out = OUT_TYPE;

// The type of the tensor cores' operands.
template <typename T>
struct OperandOf {
  using Type = T;
};
template <>
struct OperandOf<E4M3> {
  using Type = F16;
};
template <>
struct OperandOf<E5M2> {
  using Type = F16;
};
using Operand = OperandOf<Cache>::Type;
// bf16 queries on f16 operands: each row is scaled by a power of two so that its range fits.
inline constexpr bool kScaledQuery = !kSameType<Query, Operand>;

// Weights times scales of tokens may be any f32: on f16 operands those of a row and a few keys are
// scaled by a power of two.
inline constexpr bool kScaledWeights = kTokenScales && kSameType<Operand, F16>;

// Tensor cores truncate what they add to a sum, so that long sums come out too small. Where f32
// results would show it, they sum the products of a few keys from zero, and those sums are added as
// f32 is: rounded. Prefill pays for that, and with bf16 weights' own rounding hides what it gains.
inline constexpr bool kRoundedDecode = kSameType<Out, float>;
inline constexpr bool kRoundedPrefill =
    kRoundedDecode && (kSameType<Operand, F16> || kSameType<Query, float>);
// So many times longer sums stay in accumulators, which lose a little every time, before they go to
// a second level: bf16 results show less of it than their own rounding puts on them.
inline constexpr int kLevelTimes = kSameType<Out, BF16> ? 4 : 1;

inline constexpr int kHeadDim = HEAD_DIM;
inline constexpr MmaShared kShared = {kHeadDim, sizeof(Cache), TILE_ROWS, TILE_KEYS};
inline constexpr bool kOneByte = sizeof(Cache) == 1;        // an element of the cache
inline constexpr bool kSplit = kShared.split();             // operands are two words
inline constexpr bool kAdjacentTiles = sizeof(Cache) != 2;  // hold neighbouring dimensions
inline constexpr int kOperandBytes = kShared.operand();
inline constexpr int kParts = kShared.parts();
inline constexpr int kGroups = kAttendWarps / kParts;  // of warps, for different rows or keys
inline constexpr int kTileRows = TILE_ROWS;            // of prefill items
inline constexpr int kTileKeys = TILE_KEYS;
inline constexpr int kPadded = kShared.padded();
inline constexpr int kOwnDims = kShared.own_dims();
inline constexpr int kDimBlocks = kOwnDims / 16;  // of 16 head dimensions, of a warp
__device__ __forceinline__ int Group() { return static_cast<int>(threadIdx.x) / 32 / kParts; }
__device__ __forceinline__ int OwnPart() { return static_cast<int>(threadIdx.x) / 32 % kParts; }
__device__ __forceinline__ int FirstDim() { return OwnPart() * kOwnDims; }

inline constexpr int kRowTiles = kShared.row_tiles();  // 16-row tiles of a warp
inline constexpr int kQueryStride = kShared.query_stride();
inline constexpr int kCacheStride = kShared.cache_stride();
inline constexpr int kQueryBytes = kShared.query_bytes();
inline constexpr int kKeysBytes = kShared.keys_bytes();
inline constexpr int kFragmentKeys = kShared.fragment_keys();
inline constexpr int kDecodeKeys = kFragmentKeys;  // of one stage of one warp
inline constexpr int kOwnStride = kShared.own_stride();
inline constexpr int kStageBytes = kShared.stage_bytes();
inline constexpr int kTilesBytes = kShared.tiles_bytes();
inline constexpr int kExchangeTile = MmaShared::kExchangeTile;

// The widest copy that the rows' size and alignment allow.
inline constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(Cache));
inline constexpr int kChunk = kRowBytes % 16 == 0  ? 16
                              : kRowBytes % 8 == 0 ? 8
                              : kRowBytes % 4 == 0 ? 4
                                                   : static_cast<int>(sizeof(Cache));
inline constexpr int kChunks = kRowBytes / kChunk;

// A barrier of the warps that share rows and keys.
__device__ __forceinline__ void SyncParts() {
  if constexpr (kParts > 1) SyncThreads(1 + Group(), 32 * kParts);
}

// Combines what the warps of a group have, each element with the others', the same way in all.
template <int kTiles, typename Combine>
__device__ __forceinline__ void CombineParts(float (&x)[kTiles][4], unsigned exchange,
                                             Combine combine) {
  if constexpr (kParts == 1) return;
  const unsigned own = exchange + threadIdx.x * 16;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    StoreShared(own + t * kExchangeTile, make_float4(x[t][0], x[t][1], x[t][2], x[t][3]));
  }
  SyncParts();
  const auto combine_with = [&](int t, unsigned from) {
    const float4 y = LoadShared<float4>(from + t * kExchangeTile);
    x[t][0] = combine(x[t][0], y.x), x[t][1] = combine(x[t][1], y.y);
    x[t][2] = combine(x[t][2], y.z), x[t][3] = combine(x[t][3], y.w);
  };
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if constexpr (kParts == 2) {
      combine_with(t, exchange + (threadIdx.x ^ 32) * 16);
    } else {  // (own + other) + (the others' sum) does not depend on whose is whose
      float4 far[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        far[i] =
            LoadShared<float4>(exchange + (threadIdx.x ^ (64 + 32 * i)) * 16 + t * kExchangeTile);
      }
      combine_with(t, exchange + (threadIdx.x ^ 32) * 16);
      x[t][0] = combine(x[t][0], combine(far[0].x, far[1].x));
      x[t][1] = combine(x[t][1], combine(far[0].y, far[1].y));
      x[t][2] = combine(x[t][2], combine(far[0].z, far[1].z));
      x[t][3] = combine(x[t][3], combine(far[0].w, far[1].w));
    }
  }
}
template <int kTiles>
__device__ __forceinline__ void AddParts(float (&x)[kTiles][4], unsigned exchange) {
  CombineParts(x, exchange, [](float a, float b) { return a + b; });
}

// Copies one chunk of a row, or writes zeros and reads nothing if `read` is false.
__device__ __forceinline__ void CopyChunk(unsigned shared, const char* row, int chunk, bool read) {
  const char* from = row + chunk * kChunk;
  if constexpr (kChunk >= 4) {
    CopyAsync<kChunk>(shared + chunk * kChunk, from, read);
  } else if constexpr (kChunk == 2) {
    const unsigned short value = read ? *reinterpret_cast<const unsigned short*>(from) : 0;
    StoreShared(shared + chunk * 2, value);
  } else {
    const unsigned char value = read ? *reinterpret_cast<const unsigned char*>(from) : 0;
    StoreShared(shared + chunk, value);
  }
}

// Zeros the bytes between head_dim and the padded size, which the copies never write: a NaN there
// would reach the logits. All threads; the caller synchronises.
__device__ inline void ZeroPadding(char* shared, int bytes) {
  if constexpr (kHeadDim != kPadded) {
    for (int i = threadIdx.x * 16; i < bytes; i += kAttendThreads * 16) {
      *reinterpret_cast<uint4*>(shared + i) = make_uint4(0, 0, 0, 0);
    }
  }
}

// The signs of a word of queries.
inline constexpr unsigned kQuerySigns = sizeof(Query) == 2 ? 0x80008000u : 0x80000000u;

// Turns the sign of 16 bytes of queries.
__device__ __forceinline__ void Negate(char* shared) {
  uint4& x = *reinterpret_cast<uint4*>(shared);
  x.x ^= kQuerySigns, x.y ^= kQuerySigns, x.z ^= kQuerySigns, x.w ^= kQuerySigns;
}

// A power of two that brings a row of bf16 into f16's range, and its inverse.
struct RowScale {
  float up;
  float down;
};

__device__ __forceinline__ RowScale ScaleOfRow(float largest) {
  // 2^exponent of the largest; f32's own limits keep both factors normal numbers.
  int exponent = static_cast<int>(__float_as_uint(largest) >> 23);
  exponent = largest == 0.0f ? 127 : min(max(exponent, 2), 252);
  return {__uint_as_float(static_cast<unsigned>(exponent) << 23),
          __uint_as_float(static_cast<unsigned>(254 - exponent) << 23)};
}

// Brings the tile's query rows to shared memory as operands; the caller waits for copies and
// synchronises. Gives each row's factor in `row_scale` if kScaledQuery.
__device__ inline void LoadQuery(const Params& p, const Tile& tile, bool negate, char* shared,
                                 float* row_scale) {
  const Query* query = static_cast<const Query*>(p.query);
  constexpr int kChunkDims = 16 / kOperandBytes;
  if constexpr (!kScaledQuery && kHeadDim % kChunkDims == 0) {
    if constexpr (kHeadDim != kPadded) {
      constexpr int kPadChunks =
          kPadded > kHeadDim ? (kPadded - kHeadDim + kChunkDims - 1) / kChunkDims : 1;
      for (int i = threadIdx.x; i < kTileRows * kPadChunks; i += kAttendThreads) {
        *reinterpret_cast<uint4*>(shared + i / kPadChunks * kQueryStride +
                                  kHeadDim * kOperandBytes + i % kPadChunks * 16) =
            make_uint4(0, 0, 0, 0);
      }
    }
    constexpr int kRowChunks = (kHeadDim + kChunkDims - 1) / kChunkDims;
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileRows * kRowChunks; i += kAttendThreads) {
      const int row = i / kRowChunks, chunk = i % kRowChunks;
      const bool exists = row < tile.num_rows;
      const long long from = exists ? QueryRow(p, tile, row) * kHeadDim + chunk * kChunkDims : 0;
      CopyAsync<16>(SharedAddress(shared) + row * kQueryStride + chunk * 16, query + from, exists);
    }
    CommitCopies();
    if (negate) {
      WaitCopies<0>();  // what a thread copied it sees without a barrier
      for (int i = threadIdx.x; i < kTileRows * kRowChunks; i += kAttendThreads) {
        Negate(shared + i / kRowChunks * kQueryStride + i % kRowChunks * 16);
      }
    }
  } else {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < kTileRows; row += kAttendWarps) {
      const bool exists = row < tile.num_rows;
      const Query* from = exists ? query + QueryRow(p, tile, row) * kHeadDim : query;
      float values[(kPadded + 31) / 32];
      float largest = 0.0f;
#pragma unroll
      for (int j = 0; j < (kPadded + 31) / 32; ++j) {
        const int d = j * 32 + lane;
        values[j] = exists && d < kHeadDim ? ToFloat(from[d]) : 0.0f;
        if (negate) values[j] = -values[j];
        largest = fmaxf(largest, fabsf(values[j]));
      }
      float down = 1.0f;
      if constexpr (kScaledQuery) {
        for (int step = 16; step > 0; step /= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
        }
        const RowScale scale = ScaleOfRow(largest);
        down = scale.down;
        if (lane == 0) row_scale[row] = scale.up;
      }
#pragma unroll
      for (int j = 0; j < (kPadded + 31) / 32; ++j) {
        const int d = j * 32 + lane;
        if (d < kPadded) {
          *reinterpret_cast<Operand*>(shared + row * kQueryStride + d * kOperandBytes) =
              FromFloat<Operand>(values[j] * down);
        }
      }
    }
  }
}

// The A operand of 16 query rows and a block of 16 head dimensions: of f32 those of two times
// eight.
inline constexpr int kBlockBytes = 16 * kOperandBytes;
struct QueryOperand {
  unsigned x[kSplit ? 2 : 1][4];
  unsigned low[kSplit ? 2 : 1][4];  // of f32

  // Makes operands of f32 from what lies in x.
  __device__ __forceinline__ void SplitWords() {
    if constexpr (kSplit) Split(x[0], low[0]), Split(x[1], low[1]);
  }
};

// The same, of rows from `shared` and head dimension block `block`.
__device__ __forceinline__ void QueryFragment(QueryOperand& operand, unsigned shared, int block) {
  const int lane = threadIdx.x % 32;
  unsigned(&a)[4] = operand.x[0];
  if constexpr (!kOneByte) {
    const unsigned at =
        shared + (lane % 16) * kQueryStride + block * kBlockBytes + (lane / 16) * 16;
    LoadMatrix4(a, at);
    if constexpr (kSplit) LoadMatrix4(operand.x[1], at + 32);
    operand.SplitWords();
  } else {
    const unsigned at = shared + (lane / 4) * kQueryStride + block * 32 + (lane % 4) * 8;
    const uint2 low = LoadShared<uint2>(at), high = LoadShared<uint2>(at + 8 * kQueryStride);
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
  }
}

// The B operands of kFragmentKeys keys: {b[0], b[1]} for the first eight, {b[2], b[3]} for the
// others, or of f32 for the first and the last eight dimensions.
template <int kStride>
__device__ __forceinline__ void KeyFragment(unsigned (&b)[4], unsigned shared, int block) {
  const int lane = threadIdx.x % 32;
  if constexpr (kSplit) {
    LoadMatrix4(b, shared + (lane % 8) * kStride + block * kBlockBytes + (lane / 8) * 16);
  } else if constexpr (!kOneByte) {
    LoadMatrix4(b,
                shared + (lane % 8 + lane / 16 * 8) * kStride + block * 32 + (lane / 8 % 2) * 16);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned at = shared + (lane / 4 + half * 8) * kStride + block * 16 + (lane % 4) * 4;
      const unsigned bytes = LoadShared<unsigned>(at);
      b[2 * half] = F8PairToF16Pair<Cache>(bytes & 0xffffu);
      b[2 * half + 1] = F8PairToF16Pair<Cache>(bytes >> 16);
    }
  }
}

// Adds the products of a block to the logits of fragment `n` of the keys.
template <int kTiles>
__device__ __forceinline__ void AddLogits(float (&s)[kTiles][4], int n, const QueryOperand& a,
                                          const unsigned (&b)[4]) {
  if constexpr (kSplit) {
    float products[4] = {};
    MmaSplit(products, a.x, a.low, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] += products[i];
  } else {
    Mma<Operand>(s[2 * n], a.x[0], b[0], b[1]);
    Mma<Operand>(s[2 * n + 1], a.x[0], b[2], b[3]);
  }
}

// The A operand of 16 rows' weights of fragment `n` of the keys.
struct WeightOperand {
  unsigned x[1][4];
  unsigned low[1][4];  // of f32
  float unit[2];       // of the thread's two rows, if kScaledWeights
};
template <int kTiles>
__device__ __forceinline__ void WeightFragment(WeightOperand& a, const float (&s)[kTiles][4],
                                               int n) {
  float down[2] = {1.0f, 1.0f};
  if constexpr (kScaledWeights) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        largest = fmaxf(largest, fabsf(s[2 * n + i / 2][2 * h + i % 2]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const RowScale scale = ScaleOfRow(largest);
      a.unit[h] = scale.up;
      down[h] = scale.down;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSplit) {
      a.x[0][i] = __float_as_uint(s[n][i % 2 * 2 + i / 2]);
    } else {
      const float(&tile)[4] = s[2 * n + i / 2];
      a.x[0][i] = Pack2<Operand>(tile[i % 2 * 2] * down[i % 2], tile[i % 2 * 2 + 1] * down[i % 2]);
    }
  }
  if constexpr (kSplit) Split(a.x[0], a.low[0]);
}

// The B operands of kFragmentKeys keys' values: b[tile] for accumulator tile pair * kValueTiles +
// tile. They are of 16 dimensions of 16-bit types, else of 32.
inline constexpr int kValueTiles = kAdjacentTiles ? 4 : 2;
template <int kStride>
__device__ __forceinline__ void ValueFragment(unsigned (&b)[kValueTiles][2], unsigned shared,
                                              int pair) {
  const int lane = threadIdx.x % 32;
  if constexpr (kSplit) {
    const unsigned at = shared + lane % 4 * (2 * kStride) + pair * 128 + lane / 4 * 16;
    const uint4 even = LoadShared<uint4>(at), odd = LoadShared<uint4>(at + kStride);
    b[0][0] = even.x, b[1][0] = even.y, b[2][0] = even.z, b[3][0] = even.w;
    b[0][1] = odd.x, b[1][1] = odd.y, b[2][1] = odd.z, b[3][1] = odd.w;
    return;
  }
  unsigned r[4];
  LoadMatrix4Transposed(r, shared + (lane % 16) * kStride + pair * 32 + (lane / 16) * 16);
  if constexpr (!kOneByte) {
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Bytes (key 0 dim 0, key 0 dim 1, key 1 dim 0, key 1 dim 1) -> pairs of one dimension.
      const unsigned pairs = __byte_perm(r[i], 0, 0x3120);
      b[i / 2 * 2][i % 2] = F8PairToF16Pair<Cache>(pairs & 0xffffu);
      b[i / 2 * 2 + 1][i % 2] = F8PairToF16Pair<Cache>(pairs >> 16);
    }
  }
}

// sums += a * b: weights and values of kFragmentKeys keys.
template <bool kRounded>
__device__ __forceinline__ void AddProducts(float (&sums)[4], const unsigned (&a)[4],
                                            const unsigned (&b)[2]) {
  if constexpr (kRounded) {
    float products[4] = {};
    Mma<Operand>(products, a, b[0], b[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += products[i];
  } else {
    Mma<Operand>(sums, a, b[0], b[1]);
  }
}
template <bool kRounded>
__device__ __forceinline__ void AddProducts(float (&sums)[4], const WeightOperand& a,
                                            const unsigned (&b)[2]) {
  if constexpr (kSplit || kScaledWeights) {
    float products[4] = {};
    if constexpr (kSplit) {
      MmaSplit(products, a.x, a.low, b);
    } else {
      Mma<Operand>(products, a.x[0], b[0], b[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = kScaledWeights ? fmaf(products[i], a.unit[i / 2], sums[i]) : sums[i] + products[i];
    }
  } else {
    AddProducts<kRounded>(sums, a.x[0], b);
  }
}

// Accumulator tiles, and the head dimension of element `column` (0 or 1) of tile `tile`: of the
// warp's own, and of all.
inline constexpr int kOutTiles = kOwnDims / 8;
__device__ __forceinline__ int OwnDimOf(int tile, int column) {
  const int t = threadIdx.x % 4;
  if constexpr (kSplit) return tile / 4 * 32 + t * 8 + column * 4 + tile % 4;
  if constexpr (!kOneByte) return tile * 8 + t * 2 + column;
  return tile / 2 * 16 + t * 4 + column * 2 + tile % 2;
}
__device__ __forceinline__ int DimOf(int tile, int column) {
  return FirstDim() + OwnDimOf(tile, column);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_MMA_TILE_CUH_
