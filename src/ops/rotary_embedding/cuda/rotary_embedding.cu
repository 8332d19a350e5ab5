// rotary_embedding: a group of threads has a head of a token.
//
// Defined: TYPE of qkv, TABLE of cosines and sines, Q_HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM,
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
  TYPE x[2 * VECTOR];
};

// Where the vectors of a unit begin in its head.
__device__ __forceinline__ int Begin(int unit, int vector) {
#ifndef INTERLEAVED
  if (unit < kTurned) return unit * VECTOR + vector * kHalf;
#endif
  return (2 * unit + vector) * VECTOR;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_embedding(const TYPE* qkv, const int* positions, const TABLE* cos_sin, TYPE* q, TYPE* k,
                     TYPE* v, int max_positions) {
  const int thread = static_cast<int>(blockIdx.y * THREADS + threadIdx.x);
  const int head = thread / LANES, lane = thread % LANES;
  if (head >= kHeads) return;
  const long long token = blockIdx.x;
  const int position = positions[token];

  const TYPE* const from = qkv + (token * kHeads + head) * HEAD_DIM;
  Unit units[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int unit = i * LANES + lane;
    if (kUnits % LANES != 0 && unit >= kUnits) break;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const auto vector = LoadVector<TYPE, VECTOR>(from + Begin(unit, j));
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) units[i].x[j * VECTOR + e] = vector.x[e];
    }
  }

  const bool is_value = head >= Q_HEADS + KV_HEADS;
  const bool known = 0 <= position && position < max_positions;
  const TABLE* const table = cos_sin + static_cast<long long>(known ? position : 0) * ROTARY_DIM;
  TYPE* to = q + (token * Q_HEADS + head) * HEAD_DIM;
  if (is_value) {
    to = v + (token * KV_HEADS + head - Q_HEADS - KV_HEADS) * HEAD_DIM;
  } else if (head >= Q_HEADS) {
    to = k + (token * KV_HEADS + head - Q_HEADS) * HEAD_DIM;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int unit = i * LANES + lane;
    if (kUnits % LANES != 0 && unit >= kUnits) break;
    TYPE* const x = units[i].x;
    if (!is_value && (kTurned == kUnits || unit < kTurned)) {
      Vector<TABLE, VECTOR> cosines, sines;
      if (known) {
        cosines = LoadVector<TABLE, VECTOR>(table + unit * VECTOR);
        sines = LoadVector<TABLE, VECTOR>(table + kHalf + unit * VECTOR);
      }
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        const float a = ToFloat(x[e * kStep]), b = ToFloat(x[e * kStep + kApart]);
        const float cosine = known ? ToFloat(cosines.x[e]) : __uint_as_float(0x7fc00000u);
        const float sine = known ? ToFloat(sines.x[e]) : cosine;
        x[e * kStep] = FromFloat<TYPE>(a * cosine - b * sine);
        x[e * kStep + kApart] = FromFloat<TYPE>(b * cosine + a * sine);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Vector<TYPE, VECTOR> vector;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) vector.x[e] = x[j * VECTOR + e];
      StoreVector(to + Begin(unit, j), vector);
    }
  }
}

}  // namespace xla_gpu::rotary_embedding
