// What the Host hands to the update_kv_cache kernel. Included by Host and device code.
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_PARAMS_CUH_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_PARAMS_CUH_

namespace xla_gpu::update_kv_cache {

inline constexpr int kUpdateThreads = 256;
inline constexpr int kMaxTokensPerBlock = kUpdateThreads;

namespace sm90 {

inline constexpr int kBlocks = 2;              // a multiprocessor
inline constexpr int kThreads = 512;           // a block, which takes as many tokens at most
inline constexpr int kStageBytes = 16 * 1024;  // of keys, and as many of values
inline constexpr int kStages = 3;
inline constexpr int kRingBytes = 2 * kStages * kStageBytes;

}  // namespace sm90

struct CacheParams {
  void* base;          // with the layout's offset applied
  const void* input;   // [tokens, kv_heads, head_dim]
  const float* scale;  // null: 1
  int scale_step;      // 0: one scale for all heads, 1: one a head
  int token_step;      // 0, or from one token's scales to the next one's
};

struct Params {
  CacheParams k;
  CacheParams v;
  // Of the cache in elements, the same for K and V.
  long long page_stride;
  long long token_stride;
  long long head_stride;
  const void* slot_mapping;
  long long tokens;
  long long num_slots;
  long long page_size;
  int kv_heads;
  int tokens_per_block;
};

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_PARAMS_CUH_
