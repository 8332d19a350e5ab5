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

// Of a head, from its element `column` on, of the token whose place in the cache is `place`.
__device__ __forceinline__ void Store(const Params& p, const CacheParams& cache, long long place,
                                      int head, int column, const InputVector& in) {
  Cache* to = static_cast<Cache*>(cache.base) + place + head * p.head_stride + column;
  if constexpr (kSameType<Input, Cache>) {
    if (cache.scale == nullptr) return StoreVector(to, in);  // bit for bit
  }
  const float* scales = cache.scale;
  if (cache.token_step != 0) scales += Quotient(place, p.token_stride) * cache.token_step;
  const float scale = scales == nullptr ? 1.0f : scales[head * cache.scale_step];
  Vector<float, VECTOR> out;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    const float x = ToFloat(in.x[j]);
    out.x[j] = scale == 1.0f ? x : x / scale;
  }
  StoreVector(to, FromFloats<Cache>(out));
}

// Writes tokens [first, first + tokens_per_block), a whole block together. The first vectors are
// loaded before the tokens' slots need be known.
class TokenWriter {
 public:
  __device__ TokenWriter(const Params& p, long long first)
      : p_(p),
        first_(first),
        tokens_(static_cast<int>(min(p.tokens - first, 0LL + p.tokens_per_block))),
        per_token_(p.kv_heads * kPerHead),
        next_{static_cast<int>(threadIdx.x) / per_token_,
              static_cast<int>(threadIdx.x) % per_token_} {
    Fetch();
  }

  // Tokens with a negative slot are skipped. Leaves the tokens' places in the cache in `slots`.
  __device__ void Write(long long* slots) {
    for (int i = threadIdx.x; i < tokens_; i += blockDim.x) {
      if (slots[i] < 0) continue;
      const long long page = Quotient(slots[i], p_.page_size);
      slots[i] = page * p_.page_stride + (slots[i] - page * p_.page_size) * p_.token_stride;
    }
    __syncthreads();
    while (at_[0].token < tokens_) {
      StoreAll(slots);
      Fetch();
    }
  }

 private:
  // Of a vector of a thread: vectors of a token lie side by side, tokens follow.
  struct Position {
    int token;   // in the block
    int column;  // vector in the token
  };
  static constexpr int kPerHead = HEAD_DIM / VECTOR;
  static constexpr int kAtOnce = 2;  // of keys and of values: their loads are all under way

  __device__ void Fetch() {
    const int token_step = static_cast<int>(blockDim.x) / per_token_;
    const int column_step = static_cast<int>(blockDim.x) - token_step * per_token_;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      at_[i] = next_;
      next_.token += token_step;
      next_.column += column_step;
      if (next_.column >= per_token_) next_.column -= per_token_, ++next_.token;
      if (at_[i].token >= tokens_) continue;
      const long long from =
          ((first_ + at_[i].token) * per_token_ + at_[i].column) * static_cast<long long>(VECTOR);
      k_[i] = Load(p_.k, from);
      v_[i] = Load(p_.v, from);
    }
  }

  __device__ void StoreAll(const long long* places) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const long long place = at_[i].token < tokens_ ? places[at_[i].token] : -1;
      if (place < 0) continue;
      const int head = at_[i].column / kPerHead, column = at_[i].column % kPerHead * VECTOR;
      Store(p_, p_.k, place, head, column, k_[i]);
      Store(p_, p_.v, place, head, column, v_[i]);
    }
  }

  const Params& p_;
  const long long first_;
  const int tokens_, per_token_;
  Position next_, at_[kAtOnce];
  InputVector k_[kAtOnce], v_[kAtOnce];
};

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
