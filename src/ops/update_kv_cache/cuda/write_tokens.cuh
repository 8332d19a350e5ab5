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

// Of the vectors of tokens, which lie side by side, a thread's place: threads take them in turn.
class Position {
 public:
  __device__ explicit Position(const Params& p)
      : per_token_(p.kv_heads * kPerHead),
        token_step_(static_cast<int>(blockDim.x) / per_token_),
        column_step_(static_cast<int>(blockDim.x) - token_step_ * per_token_),
        token_(static_cast<int>(threadIdx.x) / per_token_),
        column_(static_cast<int>(threadIdx.x) % per_token_) {}

  __device__ void Next() {
    token_ += token_step_;
    column_ += column_step_;
    if (column_ >= per_token_) column_ -= per_token_, ++token_;
  }

  __device__ int token() const { return token_; }  // in the block
  __device__ int head() const { return column_ / kPerHead; }
  __device__ int element() const { return column_ % kPerHead * VECTOR; }  // of the head
  // In the inputs, where the block's tokens begin at token `first`.
  __device__ long long Vector(long long first) const {
    return (first + token_) * per_token_ + column_;
  }

 private:
  static constexpr int kPerHead = HEAD_DIM / VECTOR;
  int per_token_, token_step_, column_step_, token_, column_;
};

__device__ __forceinline__ int TokensOfBlock(const Params& p, long long first) {
  return static_cast<int>(min(p.tokens - first, 0LL + p.tokens_per_block));
}

// For a whole block: in the place of its tokens' slots, unless they are negative, where in the
// cache they are.
__device__ __forceinline__ void FindPlaces(const Params& p, int tokens, long long* slots) {
  for (int i = threadIdx.x; i < tokens; i += blockDim.x) {
    if (slots[i] < 0) continue;
    const long long page = Quotient(slots[i], p.page_size);
    slots[i] = page * p.page_stride + (slots[i] - page * p.page_size) * p.token_stride;
  }
  __syncthreads();
}

// Writes tokens [first, first + tokens_per_block), a whole block together. The first vectors are
// loaded before the tokens' slots need be known.
class TokenWriter {
 public:
  __device__ TokenWriter(const Params& p, long long first)
      : p_(p), first_(first), tokens_(TokensOfBlock(p, first)), next_(p), at_{next_, next_} {
    Fetch();
  }

  // Tokens with a negative slot are skipped. Leaves the tokens' places in the cache in `slots`.
  __device__ void Write(long long* slots) {
    FindPlaces(p_, tokens_, slots);
    while (at_[0].token() < tokens_) {
      StoreAll(slots);
      Fetch();
    }
  }

 private:
  static constexpr int kAtOnce = 2;  // of keys and of values: their loads are all under way

  __device__ void Fetch() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      at_[i] = next_;
      next_.Next();
      if (at_[i].token() >= tokens_) continue;
      const long long from = at_[i].Vector(first_) * VECTOR;
      k_[i] = Load(p_.k, from);
      v_[i] = Load(p_.v, from);
    }
  }

  __device__ void StoreAll(const long long* places) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Position& at = at_[i];
      const long long place = at.token() < tokens_ ? places[at.token()] : -1;
      if (place < 0) continue;
      Store(p_, p_.k, place, at.head(), at.element(), k_[i]);
      Store(p_, p_.v, place, at.head(), at.element(), v_[i]);
    }
  }

  const Params& p_;
  const long long first_;
  const int tokens_;
  Position next_, at_[kAtOnce];
  InputVector k_[kAtOnce], v_[kAtOnce];
};

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_WRITE_TOKENS_CUH_
