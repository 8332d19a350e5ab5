// The file format of one kernel in the disk cache. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_CACHE_ENTRY_H_
#define XLA_GPU_CUDA_CACHE_ENTRY_H_

#include <optional>
#include <string>
#include <string_view>

#include "src/cuda/sha256.h"

namespace xla_gpu::cuda {

struct CacheEntry {
  Sha256::Digest key = {};  // what the kernel was made from
  std::string description;  // for people
  std::string cubin;
};

std::string SerializeCacheEntry(const CacheEntry& entry);

// Nothing unless the bytes are exactly one entry and none of them has changed since it was written.
// Safe on any input.
std::optional<CacheEntry> ParseCacheEntry(std::string_view bytes);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_CACHE_ENTRY_H_
