// Writing the keys and values of a block's tokens into their slots: what the kernels that fill a
// cache share.
//
// Defines: INPUT_TYPE, CACHE_TYPE (float, BF16, F16, E4M3, E5M2), HEAD_DIM, VECTOR: elements that a
// thread moves at a time.
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_WRITE_TOKENS_CUH_

#include "src/cuda/numeric.cuh"
#include "src/ops/update_kv_cache/cuda/params.cuh"

namespace xla_gpu::update_kv_cache {

using Input = INPUT_TYPE;
using Cache = CACHE_TYPE;

// a / b of numbers >= 0: dividing 64 bits takes several times as long, and they are seldom needed.
__device__ __forceinline__ long long Quotient(long long a, long long b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<unsigned>(a) / static_cast<unsigned>(b);
}

// What a thread moves at once.
using InputVector = Vector<Input, VECTOR>;

__device__ __forceinline__ InputVector Load(const CacheParams& cache, long long element) {
  return *reinterpret_cast<const InputVector*>(static_cast<const Input*>(cache.input) + element);
}

__device__ __forceinline__ void Store(const CacheParams& cache, long long element, int head,
                                      const InputVector& in) {
  Cache* to = static_cast<Cache*>(cache.base) + element;
  if constexpr (kSameType<Input, Cache>) {
    if (cache.scale == nullptr) return StoreVector(to, in);  // bit for bit
  }
  const float scale = cache.scale == nullptr ? 1.0f : cache.scale[head * cache.scale_step];
  Vector<Cache, VECTOR> out;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    const float x = ToFloat(in.x[j]);
    out.x[j] = FromFloat<Cache>(scale == 1.0f ? x : x / scale);
  }
  StoreVector(to, out);
}

// Where the next vector of a thread lies: vectors of a token lie side by side, tokens follow.
struct Position {
  int token;   // in the block
  int column;  // vector in the token
};

// Tokens [first, first + tokens_per_block) into slots[0 ...], by a whole block; those with a
// negative slot are skipped. Leaves the tokens' places in the cache in `slots`.
__device__ __forceinline__ void WriteTokens(const Params& p, long long first, long long* slots) {
  for (int i = threadIdx.x; i < p.tokens_per_block; i += blockDim.x) {
    if (slots[i] < 0) continue;
    const long long page = Quotient(slots[i], p.page_size);
    slots[i] = page * p.page_stride + (slots[i] - page * p.page_size) * p.token_stride;
  }
  __syncthreads();

  constexpr int kPerHead = HEAD_DIM / VECTOR;
  const int per_token = p.kv_heads * kPerHead;
  const int token_step = static_cast<int>(blockDim.x) / per_token;
  const int column_step = static_cast<int>(blockDim.x) - token_step * per_token;
  Position next = {static_cast<int>(threadIdx.x) / per_token,
                   static_cast<int>(threadIdx.x) % per_token};
  const auto advance = [&] {
    const Position at = next;
    next.token += token_step;
    next.column += column_step;
    if (next.column >= per_token) next.column -= per_token, ++next.token;
    return at;
  };
  constexpr int kAtOnce = 2;  // of keys and of values: their loads are all under way before a store
  while (next.token < p.tokens_per_block) {
    Position at[kAtOnce];
    long long place[kAtOnce];
    InputVector k[kAtOnce], v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      at[i] = advance();
      place[i] = at[i].token < p.tokens_per_block ? slots[at[i].token] : -1;
      if (place[i] < 0) continue;
      const long long from =
          ((first + at[i].token) * per_token + at[i].column) * static_cast<long long>(VECTOR);
      k[i] = Load(p.k, from);
      v[i] = Load(p.v, from);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (place[i] < 0) continue;
      const int head = at[i].column / kPerHead;
      const long long to = place[i] + head * p.head_stride +
                           at[i].column % kPerHead * static_cast<long long>(VECTOR);
      Store(p.k, to, head, k[i]);
      Store(p.v, to, head, v[i]);
    }
  }
}

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
