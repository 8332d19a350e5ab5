// What `xla-gpu cache` does: looks at, empties and fills the disk cache of compiled kernels. And
// texts that front ends keep beside the kernels: what other compilers made, what was chosen.
#ifndef XLA_GPU_CUDA_CACHE_ADMIN_H_
#define XLA_GPU_CUDA_CACHE_ADMIN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/cache_entry.h"
#include "src/cuda/kernel_specs.h"

namespace xla_gpu::cuda {

struct CacheListing {
  std::string folder;
  std::vector<CachedKernel> kernels;
};

StatusOr<CacheListing> ListCache();

// Returns the number of kernels removed.
StatusOr<int> ClearCache();

struct WarmResult {
  int compiled = 0;
  int present = 0;  // were in the cache already
  int failed = 0;
};

// Called for each kernel, one call at a time.
using WarmProgress = std::function<void(size_t done, size_t total, const RegisteredSpec& spec,
                                        const std::string& arch, const StatusOr<CompiledKernel>&)>;

// Compiles what AllKernelSpecs gives for each device, in `num_threads` threads. `ops` limits
// it to these ops; empty means all. The error is one that keeps it from beginning, or from keeping
// what it compiles: a full disk ends it.
StatusOr<WarmResult> WarmCache(const std::vector<DeviceInfo>& devices,
                               const std::vector<std::string>& ops, int num_threads,
                               const WarmProgress& progress);

// The text that a process of this user kept under `key`, which is all that it depends on; empty
// where there is none.
StatusOr<std::string> ReadKept(std::string_view key);
// Nothing where there is no cache on disk. `description`: for ListCache.
Status Keep(std::string_view key, const std::string& description, std::string text);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_CACHE_ADMIN_H_
