// update_kv_cache: writes the keys and values of new tokens into their slots of a paged cache.
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_UPDATE_KV_CACHE_H_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_UPDATE_KV_CACHE_H_

#include <cstdint>
#include <memory>

#include "src/core/op.h"
#include "src/core/thread_pool.h"
#include "src/ops/paged_cache/cache_shape.h"

namespace xla_gpu {
namespace update_kv_cache {

// Everything that is known while XLA compiles.
struct Problem : paged_cache::CacheShape {
  DType input_dtype = DType::kInvalid;  // of key and value: f32, bf16, f16
  DType slot_dtype = DType::kInvalid;   // of slot_mapping: i32, i64
  int64_t tokens = 0;

  int64_t num_slots() const { return num_pages * page_size; }
};

// The tensors of one call. Where an output differs from its input, the op copies the cache first.
struct Buffers {
  const void* key;           // [tokens, kv_heads, head_dim]
  const void* value;         // [tokens, kv_heads, head_dim]
  const void* k_cache_in;    // the tensor that k.offset counts from
  const void* v_cache_in;    // k_cache_in unless separate_v
  const void* slot_mapping;  // [tokens]; slot = page * page_size + offset
  const float* k_scale;      // of one of the shapes that ParseScales takes
  const float* v_scale;
  void* k_cache_out;
  void* v_cache_out;    // k_cache_out unless separate_v
  int64_t cache_bytes;  // of one cache tensor
};

// The contract, the same in every kernel. A token whose slot lies outside [0, num_slots) is
// skipped. Where two tokens name one slot, the later one's key and value stay. An fp8 cache stores
// saturate(x / scale); other caches round x / scale to nearest even.
StatusOr<Problem> ProblemFromCall(const Call& call);
Buffers BuffersFromCall(const Problem& problem, const Call& call);

// The whole op on the Host, for other ops that write into a cache. There key and value may also be
// of the cache's fp8 dtype, without a scale.
void UpdateCacheOnHost(const Problem& problem, const Buffers& buffers, ThreadPool& pool);

}  // namespace update_kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_UPDATE_KV_CACHE_H_
