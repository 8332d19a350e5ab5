#include "src/cuda/cache_admin.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "src/core/strings.h"
#include "src/core/thread_pool.h"
#include "src/cuda/disk_cache.h"

namespace xla_gpu::cuda {
namespace {

struct Job {
  RegisteredSpec spec;
  std::string arch;
};

StatusOr<std::vector<Job>> PlanJobs(const std::vector<DeviceInfo>& devices,
                                    const std::vector<std::string>& ops) {
  std::vector<Job> jobs;
  std::set<std::string> known;
  for (const DeviceInfo& device : devices) {
    for (RegisteredSpec& spec : AllKernelSpecs(device)) {
      known.insert(spec.op);
      if (ops.empty() || std::ranges::find(ops, spec.op) != ops.end()) {
        jobs.push_back({std::move(spec), device.Arch()});
      }
    }
  }
  for (const std::string& op : ops) {
    if (!known.contains(op)) {
      return NotFound("op '", op, "' has no kernels to compile ahead of time for ",
                      StrJoin(devices, ", ", &DeviceInfo::Arch),
                      "; ops that have: ", StrJoin(known, ", "));
    }
  }
  return jobs;
}

// Of no kernel: those begin with a number.
Sha256::Digest KeptKey(std::string_view key) {
  Sha256 hash;
  hash.Update("kept ");
  hash.Update(key);
  return hash.Finish();
}

}  // namespace

StatusOr<CacheListing> ListCache() {
  CacheListing listing{DiskCache::DefaultFolder(), {}};
  const StatusOr<DiskCache> cache = DiskCache::OpenExisting(listing.folder);
  if (cache.status().code() == StatusCode::kNotFound) return listing;
  XLA_GPU_RETURN_IF_ERROR(cache.status());
  return CacheListing{listing.folder, cache->List()};
}

StatusOr<int> ClearCache() {
  const StatusOr<DiskCache> cache = DiskCache::OpenExisting(DiskCache::DefaultFolder());
  if (cache.status().code() == StatusCode::kNotFound) return 0;
  XLA_GPU_RETURN_IF_ERROR(cache.status());
  return cache->Clear();
}

StatusOr<WarmResult> WarmCache(const std::vector<DeviceInfo>& devices,
                               const std::vector<std::string>& ops, int num_threads,
                               const WarmProgress& progress) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<Job> jobs, PlanJobs(devices, ops));
  // Without a folder to keep them in, compiling would be for nothing.
  XLA_GPU_RETURN_IF_ERROR(DiskCache::Open(DiskCache::DefaultFolder()).status());

  WarmResult result;
  std::mutex mutex;
  size_t done = 0;
  Status kept;
  MakeThreadPool(num_threads)->ParallelFor(static_cast<int64_t>(jobs.size()), [&](int64_t i) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!kept.ok()) return;  // what follows would be compiled in vain
    }
    const Job& job = jobs[i];
    const StatusOr<CompiledKernel> kernel = CompileKernel(job.spec.spec, job.arch);
    std::lock_guard<std::mutex> lock(mutex);
    if (kernel.ok() && !kernel->kept.ok()) {
      kept = kernel->kept;
      return;
    }
    int& counter = !kernel.ok()        ? result.failed
                   : kernel->from_disk ? result.present
                                       : result.compiled;
    ++counter;
    progress(++done, jobs.size(), job.spec, job.arch, kernel);
  });
  XLA_GPU_RETURN_IF_ERROR(kept);
  return result;
}

StatusOr<std::string> ReadKept(std::string_view key) {
  const std::string folder = DiskCache::DefaultFolder();
  if (folder.empty()) return std::string();
  const StatusOr<DiskCache> cache = DiskCache::OpenExisting(folder);
  if (cache.status().code() == StatusCode::kNotFound) return std::string();
  XLA_GPU_RETURN_IF_ERROR(cache.status());
  std::optional<CacheEntry> entry = cache->Read(KeptKey(key));
  return entry ? std::move(entry->cubin) : std::string();
}

Status Keep(std::string_view key, const std::string& description, std::string text) {
  const std::string folder = DiskCache::DefaultFolder();
  if (folder.empty()) return OkStatus();
  XLA_GPU_ASSIGN_OR_RETURN(const DiskCache cache, DiskCache::Open(folder));
  return cache.Write({KeptKey(key), description, "", std::move(text)});
}

}  // namespace xla_gpu::cuda
