// update_kv_cache: scatters the keys and values of new tokens into their slots.
//
// Defines: INPUT_TYPE (float, BF16, F16), CACHE_TYPE (those, E4M3, E5M2), SLOT_TYPE_64 for i64 slots,
// HEAD_DIM, VECTOR: elements that a thread moves at a time.
#include "src/cuda/numeric.cuh"
#include "src/ops/kv_cache/cuda/params.cuh"

namespace xla_gpu::kv_cache {
namespace {

using Input = INPUT_TYPE;
using Cache = CACHE_TYPE;
#ifdef SLOT_TYPE_64
using Slot = long long;
#else
using Slot = int;
#endif

template <typename T>
struct alignas(VECTOR * sizeof(T)) Vector {
  T x[VECTOR];
};

__device__ __forceinline__ void WriteToken(const UpdateParams& p, const CacheParams& cache,
                                           long long token, long long slot) {
  constexpr int kPerHead = HEAD_DIM / VECTOR;
  const Input* from = static_cast<const Input*>(cache.input) + token * p.kv_heads * HEAD_DIM;
  Cache* to = static_cast<Cache*>(cache.base) + slot / p.page_size * cache.page_stride +
              slot % p.page_size * cache.token_stride;
  for (int i = threadIdx.x; i < p.kv_heads * kPerHead; i += kUpdateThreads) {
    const int head = i / kPerHead, d = i % kPerHead * VECTOR;
    const Vector<Input> in =
        *reinterpret_cast<const Vector<Input>*>(from + static_cast<long long>(i) * VECTOR);
    Vector<Cache> out;
    if constexpr (kSameType<Input, Cache>) {
      if (cache.scale == nullptr) {  // bit for bit
        *reinterpret_cast<Vector<Input>*>(to + head * cache.head_stride + d) = in;
        continue;
      }
    }
    const float scale = cache.scale == nullptr ? 1.0f : cache.scale[head * cache.scale_step];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) out.x[j] = FromFloat<Cache>(ToFloat(in.x[j]) / scale);
    *reinterpret_cast<Vector<Cache>*>(to + head * cache.head_stride + d) = out;
  }
}

}  // namespace

// A block writes tokens_per_block tokens. Where two tokens name one slot the later one must stay,
// whatever the order in which blocks run: so a token that a later one overwrites is not written.
extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    update_kv_cache(const __grid_constant__ UpdateParams p) {
  __shared__ long long slots[kMaxTokensPerBlock];
  const Slot* mapping = static_cast<const Slot*>(p.slot_mapping);
  const long long first = static_cast<long long>(blockIdx.x) * p.tokens_per_block;
  if (threadIdx.x < p.tokens_per_block) {
    const long long token = first + threadIdx.x;
    long long slot = token < p.tokens ? mapping[token] : -1;
    slots[threadIdx.x] = slot >= 0 && slot < p.num_slots ? slot : -1;
  }
  __syncthreads();
  unsigned overwritten = 0;  // a bit for each token of the block
  for (long long later = first + 1 + threadIdx.x; later < p.tokens; later += kUpdateThreads) {
    const long long slot = mapping[later];
    for (int i = 0; i < p.tokens_per_block; ++i) {
      if (slot == slots[i] && later > first + i) overwritten |= 1u << i;
    }
  }
  for (int i = 0; i < p.tokens_per_block; ++i) {
    if (__syncthreads_or(overwritten >> i & 1u) || slots[i] < 0) continue;
    WriteToken(p, p.k, first + i, slots[i]);
    WriteToken(p, p.v, first + i, slots[i]);
  }
}

// to = from, for a cache that is not updated in place. Both are aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    copy_cache(const char* from, char* to, long long bytes) {
  const long long step = static_cast<long long>(gridDim.x) * kUpdateThreads;
  const long long begin = static_cast<long long>(blockIdx.x) * kUpdateThreads + threadIdx.x;
  const long long quads = bytes / 16;
#pragma unroll 4
  for (long long i = begin; i < quads; i += step) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (long long i = quads * 16 + begin; i < bytes; i += step) to[i] = from[i];
}

}  // namespace xla_gpu::kv_cache
