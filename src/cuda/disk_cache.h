// Compiled kernels on disk, shared by all processes of a user. Internal to src/cuda.
//
// Loading an entry runs its code on the GPU, so the folder must belong to the user alone. Whatever
// goes wrong here costs a compilation, never a wrong kernel or a failed call.
#ifndef XLA_GPU_CUDA_DISK_CACHE_H_
#define XLA_GPU_CUDA_DISK_CACHE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/core/status.h"
#include "src/core/unique_fd.h"
#include "src/cuda/cache_entry.h"

namespace xla_gpu::cuda {

class DiskCache {
 public:
  // $XLA_GPU_CACHE_DIR, else $XDG_CACHE_HOME/xla_gpu, else ~/.cache/xla_gpu. Empty, which means no
  // disk cache, if XLA_GPU_CACHE_DIR is set to nothing or no home is known.
  static std::string DefaultFolder();

  // Makes the folder (mode 0700) where it is missing. Refuses one that belongs to another user or
  // that others may write to, and a link, whose maker need not be its folder's owner.
  static StatusOr<DiskCache> Open(const std::string& folder);
  // Makes nothing: kNotFound for a folder that is missing and could be made.
  static StatusOr<DiskCache> OpenExisting(const std::string& folder);

  // The entry with this key. A damaged file is removed and is as good as none.
  std::optional<CacheEntry> Read(const Sha256::Digest& key) const;
  void Remove(const Sha256::Digest& key) const;

  // Puts the entry in place at once or not at all.
  Status Write(const CacheEntry& entry) const;

  // While it lives, no other process or thread holds the same key's lock. Where locks do not work
  // or the wait exceeds `timeout`, it holds nothing: a lock saves work here, safety does not hang
  // on it. It must not outlive the cache.
  class KeyLock {
   public:
    KeyLock(KeyLock&&) = default;
    KeyLock& operator=(KeyLock&&) = delete;
    ~KeyLock();
    bool held() const { return fd_.open(); }

   private:
    friend class DiskCache;
    KeyLock(int folder, std::string name) : folder_(folder), name_(std::move(name)) {}

    int folder_;
    std::string name_;
    UniqueFd fd_;
  };
  KeyLock Lock(const Sha256::Digest& key, std::chrono::milliseconds timeout) const;

  std::vector<CachedKernel> List() const;

  // Removes all that this class has written and returns the number of kernels among it.
  StatusOr<int> Clear() const;

  const std::string& folder() const { return folder_; }

 private:
  DiskCache(std::string folder, UniqueFd fd) : folder_(std::move(folder)), fd_(std::move(fd)) {}

  static StatusOr<DiskCache> Open(const std::string& given, bool make);
  std::optional<std::string> ReadFile(const std::string& name, bool mark_used) const;
  void RemoveOutdated() const;

  std::string folder_;
  UniqueFd fd_;  // all access goes through it, so that the folder checked is the folder used
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_DISK_CACHE_H_
