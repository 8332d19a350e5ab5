// paged_attention, second launch, in plain f32: the mixtures of types that no tensor-core kernel
// takes, heads that it has no room for, and tensors that start at no multiple of 16 bytes.
//
// A block holds 16 rows; eight threads share a row: each of them computes the logits of every
// eighth key, and sums every eighth group of four head dimensions of the values.
//
// Defines: QUERY_TYPE, CACHE_TYPE, OUT_TYPE (float, BF16, F16, E4M3, E5M2), HEAD_DIM,
// SOFT_CAP (0: none, 2), PLAIN (1: as tile.cuh says); UNALIGNED (numeric.cuh) or not, TOKEN_SCALES
// (tile.cuh) or not.
#include "src/ops/paged_attention/cuda/attend.cuh"
#include "src/ops/paged_attention/cuda/attend_shared.cuh"
#include "src/ops/paged_attention/cuda/carry.cuh"

namespace xla_gpu::paged_attention {
namespace {

using Query = QUERY_TYPE;
using Cache = CACHE_TYPE;
using Out = OUT_TYPE;

constexpr int kRows = kDecodeTileRows;
constexpr int kHeadDim = HEAD_DIM;
constexpr SimtShared kShared = {kHeadDim};
constexpr int kLanes = SimtShared::kLanes;
constexpr int kKeys = kShared.keys();
constexpr int kStride = kShared.stride();
constexpr int kQuads = kShared.quads();
constexpr int kPadded = 4 * kQuads;
constexpr int kOwnQuads = kShared.own_quads();
constexpr int kTileFloats = kShared.tile_floats();
constexpr int kCarryFloats = kShared.carry_floats();
constexpr int kCarryBlocks =
    kShared.carry_keys(sizeof(Query) == 2 && (kSameType<Query, Cache> || sizeof(Cache) == 1)) /
    kKeys;

struct Extra {
  long long offsets[kKeys];
  float k_scales[kTokenScales ? kKeys : 1];
  float v_scales[kTokenScales ? kKeys : 1];
  float weights[kRows][kKeys + 1];
};

// Loads rows of `kHeadDim` elements as f32, times their `scales` if kScaled, zeros where `row_at`
// gives null.
template <typename T, int kCount, bool kScaled, typename RowAt>
__device__ __forceinline__ void LoadRows(float* shared, RowAt row_at, const float* scales) {
  if constexpr (kHeadDim % 4 == 0) {
#pragma unroll 4
    for (int i = threadIdx.x; i < kCount * kQuads; i += kAttendThreads) {
      const int row = i / kQuads, quad = i % kQuads;
      const T* from = row_at(row);
      float4 value = make_float4(0, 0, 0, 0);
      if (from != nullptr) {
        const auto q = LoadVector<T, 4>(from + quad * 4);
        value = make_float4(ToFloat(q.x[0]), ToFloat(q.x[1]), ToFloat(q.x[2]), ToFloat(q.x[3]));
        if constexpr (kScaled) {
          const float scale = scales[row];
          value.x *= scale, value.y *= scale, value.z *= scale, value.w *= scale;
        }
      }
      *reinterpret_cast<float4*>(shared + row * kStride + quad * 4) = value;
    }
  } else {
    for (int i = threadIdx.x; i < kCount * kPadded; i += kAttendThreads) {
      const int row = i / kPadded, d = i % kPadded;
      const T* from = row_at(row);
      float value = from != nullptr && d < kHeadDim ? ToFloat(from[d]) : 0.0f;
      if constexpr (kScaled) value *= from != nullptr ? scales[row] : 0.0f;
      shared[row * kStride + d] = value;
    }
  }
}

__device__ __forceinline__ float Dot(const float* a, const float* b) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int i = 0; i < kQuads; ++i) {
    const float4 x = *reinterpret_cast<const float4*>(a + 4 * i);
    const float4 y = *reinterpret_cast<const float4*>(b + 4 * i);
    sum.x = fmaf(x.x, y.x, sum.x);
    sum.y = fmaf(x.y, y.y, sum.y);
    sum.z = fmaf(x.z, y.z, sum.z);
    sum.w = fmaf(x.w, y.w, sum.w);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}

// Moves the sums of the thread's row to the carry.
__device__ __forceinline__ void PutCarry(const Carry& carry, float factor, bool first, float max,
                                         float& sum, float (&o)[kOwnQuads][4]) {
  const float rescale = first ? 0.0f : exp2f(Log2Weight(carry[0], max, factor));
  carry[0] = max;
  PutCarry(carry, 1, first, rescale, sum);
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4 * kOwnQuads; ++i) {
    PutCarry(carry, 3 + 2 * i, first, rescale, o[i / 4][i % 4]);
    o[i / 4][i % 4] = 0.0f;
  }
}

template <typename FetchNext>
__device__ __forceinline__ void Run(const Params& p, const Tile& tile, FetchNext fetch_next,
                                    float* shared, Extra& extra) {
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;

  // The queries, and what the row sees.
  float* query = shared;
  float* keys = query + kRows * kStride;
  float* values = keys + kTileFloats;
  const Visible visible = VisibleKeys(p, tile, row);
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const auto query_row = [&](int r) {
    return r < tile.num_rows ? static_cast<const Query*>(p.query) + QueryRow(p, tile, r) * kHeadDim
                             : nullptr;
  };
  LoadRows<Query, kRows, false>(query, query_row, nullptr);
  fetch_next();

  const int first = tile.key_begin / kKeys;
  const int end = tile.key_end > tile.key_begin ? (tile.key_end - 1) / kKeys + 1 : first;
  const bool carries = end - first > kCarryBlocks;
  const Carry carry = MakeCarry(p, kAttendThreads, kCarryFloats);
  float max = -Infinity(), sum = 0.0f;
  float o[kOwnQuads][4] = {};
  for (int block = first; block < end; ++block) {
    // Load keys and values.
    const int key0 = block * kKeys;
    if (threadIdx.x < kKeys) {
      const int key = key0 + static_cast<int>(threadIdx.x), page = PageOf(p, tile, key);
      const long long offset = KeyOffset(p, tile, key, page);
      extra.offsets[threadIdx.x] = offset;
      if (kTokenScales && offset >= 0) {
        const long long index = TokenScaleIndex(p, tile, key, page);
        extra.k_scales[threadIdx.x] = TokenScale(p.k_token_scales, index);
        extra.v_scales[threadIdx.x] = TokenScale(p.v_token_scales, index);
      }
    }
    __syncthreads();
    const auto row_of = [&](const char* base, int r) {
      const long long offset = extra.offsets[r];
      return offset < 0 ? nullptr
                        : reinterpret_cast<const Cache*>(base + tile.head * p.head_stride + offset);
    };
    LoadRows<Cache, kKeys, kTokenScales>(
        keys, [&](int r) { return row_of(p.k_cache, r); }, extra.k_scales);
    LoadRows<Cache, kKeys, kTokenScales>(
        values, [&](int r) { return row_of(p.v_cache, r); }, extra.v_scales);
    __syncthreads();

    // Logits.
    float s[kKeys / kLanes];
    float new_max = max;
#pragma unroll
    for (int i = 0; i < kKeys / kLanes; ++i) {
      const int key = lane + i * kLanes;
      float x = Dot(query + row * kStride, keys + key * kStride);
      if (logit.negate) x = -x;
      if (SOFT_CAP) x = Capped(x, logit.cap_in);
      s[i] = key0 + key >= visible.begin && key0 + key < visible.end ? x : -Infinity();
      new_max = fmaxf(new_max, s[i]);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, step));
    }

    // Softmax.
    const float rescale = exp2f(Log2Weight(max, new_max, logit.factor));
    max = new_max;
    float block_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeys / kLanes; ++i) {
      const float weight = exp2f(Log2Weight(s[i], max, logit.factor));
      block_sum += weight;
      extra.weights[row][lane + i * kLanes] = weight;
    }
    sum = sum * rescale + block_sum;
    __syncwarp();  // a row's threads are of one warp

    // Weights times values, but for keys that the row does not see: 0 times a value that is not
    // finite is NaN.
    const int first_seen = visible.begin > key0 ? visible.begin - key0 : 0;
    const int seen_end = min(visible.end - key0, kKeys);
    float part[kOwnQuads][4] = {};  // from zero, which loses less
#pragma unroll 4
    for (int key = first_seen; key < seen_end; ++key) {
      const float weight = extra.weights[row][key];
#pragma unroll
      for (int j = 0; j < kOwnQuads; ++j) {
        const int quad = lane + j * kLanes;
        if (kQuads % kLanes == 0 || quad < kQuads) {
          const float4 v = *reinterpret_cast<const float4*>(values + key * kStride + quad * 4);
          part[j][0] = fmaf(weight, v.x, part[j][0]);
          part[j][1] = fmaf(weight, v.y, part[j][1]);
          part[j][2] = fmaf(weight, v.z, part[j][2]);
          part[j][3] = fmaf(weight, v.w, part[j][3]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kOwnQuads; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = fmaf(o[j][i], rescale, part[j][i]);
    }
    if (carries && ((block - first) % kCarryBlocks == kCarryBlocks - 1 || block + 1 == end)) {
      PutCarry(carry, logit.factor, block - first < kCarryBlocks, max, sum, o);
    }
    __syncthreads();  // the tile is read
  }

  // Finish the sums.
  if (carries) {
    sum = TakeCarry(carry, 1);
#pragma unroll
    for (int i = 0; i < 4 * kOwnQuads; ++i) o[i / 4][i % 4] = TakeCarry(carry, 3 + 2 * i);
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);

  // Write the row.
  if (row >= tile.num_rows) return;
  const bool split = tile.splits > 1;
  RowEnd row_end = {};
  float* partial = nullptr;
  Out* out = nullptr;
  if (split) {
    const long long at = PartialRow(p, tile, row);
    partial = p.partial_out + at * kHeadDim;
    if (lane == 0) {
      p.partial_max[at] = max;
      p.partial_sum[at] = sum;
    }
  } else {
    const long long query_row = QueryRow(p, tile, row);
    out = static_cast<Out*>(p.out) + query_row * kHeadDim;
    row_end = FinishRow(p, tile, query_row, MakeLogitFactor(p, tile.head), max, sum);
    if (HasLse(p) && lane == 0) p.lse[query_row] = row_end.lse;
  }
#pragma unroll
  for (int j = 0; j < kOwnQuads; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = (lane + j * kLanes) * 4 + i;
      if (d >= kHeadDim) continue;
      if (split) {
        partial[d] = o[j][i];
      } else {
        out[d] = FromFloat<Out>(row_end.Value(o[j][i]));
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kAttendThreads, kHeadDim > 256 ? 2 : 4)
    paged_attention_attend(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) float floats[];
  __shared__ Extra extra;
  Attend<Out, kHeadDim>(p, [&](const Tile& tile, auto fetch_next) {
    Run(p, tile, fetch_next, floats, extra);
    __syncthreads();
  });
}

}  // namespace xla_gpu::paged_attention
