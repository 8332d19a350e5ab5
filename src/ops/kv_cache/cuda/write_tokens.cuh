// Writing the keys and values of a block's tokens into their slots: what the kernels that fill a
// cache share.
//
// Defines: INPUT_TYPE, CACHE_TYPE (float, BF16, F16, E4M3, E5M2), HEAD_DIM, VECTOR: elements that a
// thread moves at a time.
#ifndef XLA_GPU_OPS_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
#define XLA_GPU_OPS_KV_CACHE_CUDA_WRITE_TOKENS_CUH_

#include "src/cuda/numeric.cuh"
#include "src/ops/kv_cache/cuda/params.cuh"

namespace xla_gpu::kv_cache {

using Input = INPUT_TYPE;
using Cache = CACHE_TYPE;

// a / b of numbers >= 0: dividing 64 bits takes several times as long, and they are seldom needed.
__device__ __forceinline__ long long Quotient(long long a, long long b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<unsigned>(a) / static_cast<unsigned>(b);
}

// Elements [d, d + VECTOR) of one head of one token.
__device__ __forceinline__ void WriteVector(const UpdateParams& p, const CacheParams& cache,
                                            long long token, long long slot, int head, int d) {
  const Input* from =
      static_cast<const Input*>(cache.input) + (token * p.kv_heads + head) * HEAD_DIM + d;
  const long long page = Quotient(slot, p.page_size);
  Cache* to = static_cast<Cache*>(cache.base) + page * cache.page_stride +
              (slot - page * p.page_size) * cache.token_stride + head * cache.head_stride + d;
  const auto in = *reinterpret_cast<const Vector<Input, VECTOR>*>(from);
  if (kSameType<Input, Cache> && cache.scale == nullptr) {  // bit for bit
    *reinterpret_cast<Vector<Input, VECTOR>*>(to) = in;
    return;
  }
  const float scale = cache.scale == nullptr ? 1.0f : cache.scale[head * cache.scale_step];
  Vector<Cache, VECTOR> out;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) out.x[j] = FromFloat<Cache>(ToFloat(in.x[j]) / scale);
  *reinterpret_cast<Vector<Cache, VECTOR>*>(to) = out;
}

// Tokens [first, first + tokens_per_block) into slots[0 ...], by a whole block; those with a
// negative slot are skipped.
__device__ __forceinline__ void WriteTokens(const UpdateParams& p, long long first,
                                            const long long* slots) {
  constexpr int kPerHead = HEAD_DIM / VECTOR;
  const int per_token = p.kv_heads * kPerHead;
#pragma unroll 2
  for (int i = threadIdx.x; i < p.tokens_per_block * per_token; i += blockDim.x) {
    const int token = i / per_token;
    const long long slot = slots[token];
    if (slot < 0) continue;
    const int head = (i - token * per_token) / kPerHead, d = i % kPerHead * VECTOR;
    WriteVector(p, p.k, first + token, slot, head, d);
    WriteVector(p, p.v, first + token, slot, head, d);
  }
}

}  // namespace xla_gpu::kv_cache

#endif  // XLA_GPU_OPS_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
