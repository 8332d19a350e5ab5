// ParseCacheEntry on any bytes: never a fault, and what it accepts is what SerializeCacheEntry
// writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/cuda/cache_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto entry = xla_gpu::cuda::ParseCacheEntry(bytes);
  if (entry && xla_gpu::cuda::SerializeCacheEntry(*entry) != bytes) std::abort();
  // The same bytes as the content of a valid entry, so that the fuzzer gets past the checksum.
  if (size > 0) {
    const size_t split = data[0] % size;
    const xla_gpu::cuda::CacheEntry made = {
        {data[0]}, std::string(bytes.substr(0, split)), std::string(bytes.substr(split))};
    const auto back = xla_gpu::cuda::ParseCacheEntry(xla_gpu::cuda::SerializeCacheEntry(made));
    if (!back || back->cubin != made.cubin || back->description != made.description) std::abort();
  }
  return 0;
}
