// rotary_embedding: a group of threads has a head of a token.
//
// Defined: TYPE of qkv, OUT of the results, TABLE of cosines and sines, FACTORS if there are any,
// NORM of the norms' weights unless there are none, Q_HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM,
// INTERLEAVED if pairs are, VECTOR (elements that a thread moves at once, of which ROTARY_DIM and
// the rest of a head each have an even number), LANES (threads of a group, a power of two up to
// 32), THREADS, a multiple of 32.
#include "src/cuda/numeric.cuh"

namespace xla_gpu::rotary_embedding {

constexpr int kHeads = Q_HEADS + 2 * KV_HEADS;
constexpr int kHalf = ROTARY_DIM / 2;
constexpr int kUnits = HEAD_DIM / (2 * VECTOR);  // of two vectors
constexpr int kTurned = kHalf / VECTOR;          // of these
constexpr int kOwn = (kUnits + LANES - 1) / LANES;

#ifdef INTERLEAVED
constexpr int kStep = 2, kApart = 1;  // pairs in a unit
#else
constexpr int kStep = 1, kApart = VECTOR;
#endif

struct Unit {
  float x[2 * VECTOR];
};

// Where the vectors of a unit begin in its head.
__device__ __forceinline__ int Begin(int unit, int vector) {
#ifndef INTERLEAVED
  if (unit < kTurned) return unit * VECTOR + vector * kHalf;
#endif
  return (2 * unit + vector) * VECTOR;
}

// f(which of this thread's units, which of the head's)
template <class F>
__device__ __forceinline__ void ForOwn(const F& f) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int unit = i * LANES + static_cast<int>(threadIdx.x) % LANES;
    if (kUnits % LANES == 0 || unit < kUnits) f(i, unit);
  }
}

// `from`: a head.
template <typename T>
__device__ __forceinline__ Unit Load(const T* from, int unit) {
  Unit values;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const auto vector = LoadVector<T, VECTOR>(from + Begin(unit, j));
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) values.x[j * VECTOR + e] = ToFloat(vector.x[e]);
  }
  return values;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_embedding(const TYPE* qkv, const int* positions, const TABLE* cos_sin,
                     const void* q_norm, const void* k_norm, const float* row_factor,
                     const float* column_factor, OUT* q, OUT* k, OUT* v, int max_positions,
                     float epsilon) {
  const int head = static_cast<int>(blockIdx.y * THREADS + threadIdx.x) / LANES;
  if (head >= kHeads) return;
  const long long token = blockIdx.x;
  const int position = positions[token];
  const TYPE* const from = qkv + (token * kHeads + head) * HEAD_DIM;
  Unit own[kOwn];
  ForOwn([&](int i, int unit) { own[i] = Load(from, unit); });
#ifdef FACTORS
  const float of_token = row_factor == nullptr ? 1.0f : row_factor[token];
  ForOwn([&](int i, int unit) {
    Unit factors;
    if (column_factor != nullptr) factors = Load(column_factor + head * HEAD_DIM, unit);
#pragma unroll
    for (int e = 0; e < 2 * VECTOR; ++e) {
      own[i].x[e] *= column_factor == nullptr ? of_token : of_token * factors.x[e];
    }
  });
#endif

  const bool is_key = head >= Q_HEADS, is_value = head >= Q_HEADS + KV_HEADS;
  OUT* to = q + (token * Q_HEADS + head) * HEAD_DIM;
  if (is_value) {
    to = v + (token * KV_HEADS + head - Q_HEADS - KV_HEADS) * HEAD_DIM;
  } else if (is_key) {
    to = k + (token * KV_HEADS + head - Q_HEADS) * HEAD_DIM;
  }

#ifdef NORM
  if (!is_value) {
    const auto* const norm = static_cast<const NORM*>(is_key ? k_norm : q_norm);
    Unit weights[kOwn];  // on their way while the group sums
    ForOwn([&](int i, int unit) { weights[i] = Load(norm, unit); });
    float squares = 0.0f;
    ForOwn([&](int i, int unit) {
#pragma unroll
      for (int e = 0; e < 2 * VECTOR; ++e) squares += own[i].x[e] * own[i].x[e];
    });
    const unsigned group = 0xffffffffu >> (32 - LANES) << threadIdx.x % 32 / LANES * LANES;
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
      squares += __shfl_xor_sync(group, squares, lanes);
    }
    const float scale = rsqrtf(squares / HEAD_DIM + epsilon);
    ForOwn([&](int i, int unit) {
#pragma unroll
      for (int e = 0; e < 2 * VECTOR; ++e) own[i].x[e] *= scale * weights[i].x[e];
    });
  }
#endif

  const bool known = 0 <= position && position < max_positions;
  const TABLE* const table = cos_sin + static_cast<long long>(known ? position : 0) * ROTARY_DIM;
  ForOwn([&](int i, int unit) {
    float* const x = own[i].x;
    if (!is_value && (kTurned == kUnits || unit < kTurned)) {
      Vector<TABLE, VECTOR> cosines, sines;
      if (known) {
        cosines = LoadVector<TABLE, VECTOR>(table + unit * VECTOR);
        sines = LoadVector<TABLE, VECTOR>(table + kHalf + unit * VECTOR);
      }
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        const float a = x[e * kStep], b = x[e * kStep + kApart];
        const float cosine = known ? ToFloat(cosines.x[e]) : __uint_as_float(0x7fc00000u);
        const float sine = known ? ToFloat(sines.x[e]) : cosine;
        x[e * kStep] = a * cosine - b * sine;
        x[e * kStep + kApart] = b * cosine + a * sine;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Vector<OUT, VECTOR> vector;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) vector.x[e] = FromFloat<OUT>(x[j * VECTOR + e]);
      StoreVector(to + Begin(unit, j), vector);
    }
  });
}

}  // namespace xla_gpu::rotary_embedding
