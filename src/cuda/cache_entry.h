// The file format of one kernel in the disk cache. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_CACHE_ENTRY_H_
#define XLA_GPU_CUDA_CACHE_ENTRY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/cuda/sha256.h"

namespace xla_gpu::cuda {

struct CacheEntry {
  Sha256::Digest key = {};  // what the kernel was made from
  std::string description;  // for people
  std::string entry;        // the kernel's name in the code, where that is not the source's
  std::string cubin;        // or what else is kept, without an entry
};

// A kernel in the cache's folder.
struct CachedKernel {
  std::string file;
  std::string description;  // empty if the file is damaged
  bool valid = false;       // a whole entry under its own key
  int64_t bytes = 0;
  int64_t modified = 0;  // seconds since 1970
};

std::string SerializeCacheEntry(const CacheEntry& entry);

// Nothing unless the bytes are exactly one entry and none of them has changed since it was written.
// Safe on any input.
std::optional<CacheEntry> ParseCacheEntry(std::string_view bytes);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_CACHE_ENTRY_H_
