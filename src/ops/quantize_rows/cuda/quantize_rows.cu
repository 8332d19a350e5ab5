// quantize_rows: a block, or the blocks of a cluster, quantize a row.
//
// Defined: TYPE of the rows, NORM of the norm's weights unless there is none, RESIDUAL likewise,
// FACTORS and SILU_MUL if there are any, COLUMNS, VECTOR (elements that a thread moves at once,
// which divide COLUMNS), THREADS, a multiple of 32, BLOCKS of a row, each with as many columns.
#if BLOCKS > 1
#include "src/cuda/ptx_sm90.cuh"
#else
#include "src/cuda/numeric.cuh"
#endif
#include "src/ops/quantize_rows/numbers.cuh"

namespace xla_gpu::quantize_rows {

constexpr int kColumns = COLUMNS / BLOCKS;  // of a block
constexpr int kVectors = kColumns / VECTOR;
constexpr int kOwn = (kVectors + THREADS - 1) / THREADS;  // vectors of a thread
constexpr bool kKeeps = kOwn * VECTOR <= kMostKept;

using Values = Vector<float, VECTOR>;

struct Add {
  static __device__ float Of(float a, float b) { return a + b; }
};
struct Max {
  static __device__ float Of(float a, float b) { return fmaxf(a, b); }  // b where a is NaN
};

template <class Join>
__device__ __forceinline__ float OfWarp(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = Join::Of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}

// Of the block, in each thread, where 0 joins without effect. `scratch` is used once.
template <class Join>
__device__ __forceinline__ float OfBlock(float value, float* scratch) {
  constexpr int kWarps = THREADS / 32;
  value = OfWarp<Join>(value);
  if (kWarps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return OfWarp<Join>(lane < kWarps ? scratch[lane] : 0.0f);
}

// Of the row, out of that of each of its blocks, in each thread.
template <class Join>
__device__ __forceinline__ float OfRow(float value, float* scratch) {
  value = OfBlock<Join>(value, scratch);
#if BLOCKS > 1
  __shared__ float of_blocks[BLOCKS];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < BLOCKS) {
    StoreInBlock(InBlock(SharedAddress(&of_blocks[blockIdx.x % BLOCKS]), thread), value);
  }
  SyncCluster();
  value = 0.0f;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) value = Join::Of(value, of_blocks[i]);
#endif
  return value;
}

// f(which of this thread's vectors, its first column)
template <class F>
__device__ __forceinline__ void ForOwn(const F& f) {
#pragma unroll(kKeeps ? kOwn : 1)
  for (int i = 0; i < kOwn; ++i) {
    const int vector = i * THREADS + static_cast<int>(threadIdx.x);
    if (kVectors % THREADS == 0 || vector < kVectors) f(i, vector * VECTOR);
  }
}

template <typename T>
__device__ __forceinline__ Values Load(const T* from) {
  const auto vector = LoadVector<T, VECTOR>(from);
  Values values;
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) values.x[i] = ToFloat(vector.x[i]);
  return values;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_rows(const TYPE* x, const void* norm_weight, const float* row_factor,
                  const float* column_factor, const void* residual, E4M3* out, float* scale,
                  void* sum, float epsilon) {
  __shared__ float scratch[2][32];
#if BLOCKS > 1
  ArriveCluster();
#endif
  const long long row = blockIdx.x / BLOCKS;
  const int first = static_cast<int>(blockIdx.x % BLOCKS) * kColumns;
  out += row * COLUMNS + first;
#ifdef FACTORS
  const float of_row = row_factor == nullptr ? 1.0f : row_factor[row];
  if (column_factor != nullptr) column_factor += first;
  const auto load = [&](int at) {
    Values values = Load(x + at);
    if (column_factor != nullptr) {
      const Values factors = Load(column_factor + at);
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) values.x[i] *= of_row * factors.x[i];
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) values.x[i] *= of_row;
    }
    return values;
  };
#else
  const auto load = [&](int at) { return Load(x + at); };
#endif
#ifdef SILU_MUL
  x += row * 2 * COLUMNS + first;
  const auto activated = [&](int at) {
    Values values = load(at);
    const Values up = load(COLUMNS + at);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values.x[i] *= up.x[i] / (1.0f + expf(-values.x[i]));
    return values;
  };
#else
  x += row * COLUMNS + first;
  const auto& activated = load;
#endif
#ifdef RESIDUAL
  const RESIDUAL* const add = static_cast<const RESIDUAL*>(residual) + row * COLUMNS + first;
  const auto computed = [&](int at) {
    Values values = activated(at);
    const Values more = Load(add + at);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values.x[i] += more.x[i];
    return values;
  };
#else
  const auto& computed = activated;
#endif
  Values kept[kKeeps ? kOwn : 1];
  if constexpr (kKeeps) ForOwn([&](int i, int at) { kept[i] = computed(at); });
  const auto given = [&](int i, int at) {
    if constexpr (kKeeps) {
      return kept[i];
    } else {
      return computed(at);
    }
  };

#ifdef RESIDUAL
  ForOwn([&](int i, int at) {
    StoreVector(static_cast<RESIDUAL*>(sum) + row * COLUMNS + first + at,
                FromFloats<RESIDUAL>(given(i, at)));
  });
#endif

#if BLOCKS > 1
  WaitForCluster();  // the others' memory is there
#endif
#ifdef NORM
  const auto* const weight = static_cast<const NORM*>(norm_weight) + first;
  Values weights[kKeeps ? kOwn : 1];  // on their way while the block sums
  if constexpr (kKeeps) ForOwn([&](int i, int at) { weights[i] = Load(weight + at); });
  float squares = 0.0f;
  ForOwn([&](int i, int at) {
    const Values values = given(i, at);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) squares += values.x[j] * values.x[j];
  });
  const float norm = rsqrtf(OfRow<Add>(squares, scratch[0]) / COLUMNS + epsilon);
  const auto finished = [&](int i, int at) {
    Values values = given(i, at);
    if constexpr (!kKeeps) weights[0] = Load(weight + at);
    const Values& of_columns = weights[kKeeps ? i : 0];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) values.x[j] *= norm * of_columns.x[j];
    return values;
  };
#else
  const auto& finished = given;
#endif

  float largest = 0.0f;
  ForOwn([&](int i, int at) {
    const Values values = finished(i, at);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) largest = fmaxf(largest, fabsf(values.x[j]));
    if constexpr (kKeeps) kept[i] = values;
  });
  largest = OfRow<Max>(largest, scratch[1]);
  const float unit = fmaxf(largest / kLargest, kLeastScale), inverse = 1.0f / unit;
  ForOwn([&](int i, int at) {
    Values values;
    if constexpr (kKeeps) {
      values = kept[i];
    } else {
      values = finished(i, at);
    }
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) values.x[j] *= inverse;
    StoreVector(out + at, FromFloats<E4M3>(values));
  });
  if (first == 0 && threadIdx.x == 0) scale[row] = unit;
}

}  // namespace xla_gpu::quantize_rows
