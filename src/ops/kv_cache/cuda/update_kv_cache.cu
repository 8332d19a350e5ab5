// update_kv_cache: scatters the keys and values of new tokens into their slots.
//
// Defines: INPUT_TYPE (float, BF16, F16), CACHE_TYPE (those, E4M3, E5M2), SLOT_TYPE_64 for i64
// slots, HEAD_DIM, VECTOR: elements that a thread moves at a time.
#include "src/ops/kv_cache/cuda/write_tokens.cuh"

namespace xla_gpu::kv_cache {
namespace {

#ifdef SLOT_TYPE_64
using Slot = long long;
#else
using Slot = int;
#endif

}  // namespace

// A block writes tokens_per_block tokens. Where two tokens name one slot the later one must stay,
// whatever the order in which blocks run: so a token that a later one overwrites is not written.
extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    update_kv_cache(const __grid_constant__ UpdateParams p) {
  __shared__ long long slots[kMaxTokensPerBlock];
  const Slot* mapping = static_cast<const Slot*>(p.slot_mapping);
  const long long first = static_cast<long long>(blockIdx.x) * p.tokens_per_block;
  if (threadIdx.x < kMaxTokensPerBlock) {
    const long long token = first + threadIdx.x;
    const bool exists = threadIdx.x < p.tokens_per_block && token < p.tokens;
    const long long slot = exists ? static_cast<long long>(mapping[token]) : -1;
    slots[threadIdx.x] = slot >= 0 && slot < p.num_slots ? slot : -1;
  }
  __syncthreads();
  bool overwritten[kMaxTokensPerBlock] = {};
  for (long long later = first + 1 + threadIdx.x; later < p.tokens; later += kUpdateThreads) {
    const long long slot = mapping[later];
#pragma unroll
    for (int i = 0; i < kMaxTokensPerBlock; ++i) {
      overwritten[i] |= slot == slots[i] && later > first + i;
    }
  }
  __syncthreads();  // the slots are read
#pragma unroll
  for (int i = 0; i < kMaxTokensPerBlock; ++i) {
    if (overwritten[i]) slots[i] = -1;
  }
  __syncthreads();

  WriteTokens(p, first, slots);
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
