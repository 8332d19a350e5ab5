// ThreadPool: how Host kernels use all cores, whoever owns the threads (XLA's runtime or us).
#ifndef XLA_GPU_CORE_THREAD_POOL_H_
#define XLA_GPU_CORE_THREAD_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace xla_gpu {

class ThreadPool {
 public:
  virtual ~ThreadPool() = default;

  // How many threads may work at once, the caller included; at least 1.
  virtual int num_threads() const = 0;

  // Runs task(0) ... task(n - 1), each once, in any order and on any thread, and returns when all
  // are done. The caller's thread works too, so a pool with no free thread still makes progress.
  // Tasks run in the caller's floating-point environment.
  // Where a task throws, the rest may be left out, and the first exception is thrown here when no
  // task runs any more.
  void ParallelFor(int64_t n, const std::function<void(int64_t)>& task);

  // Runs `task` once: some time on another thread, or here where the pool has or takes none. It
  // must not throw.
  void Submit(std::function<void()> task);

 protected:
  // Runs `helper` some time on some thread, or never (a pool that is shut down).
  virtual void Schedule(std::function<void()> helper) = 0;
};

// The process's own pool, one thread a core or as many as can be had; made at first use, a forked
// child's anew.
ThreadPool& DefaultThreadPool();

// A pool of `num_threads` threads, the caller's included, or as many as can be had. A forked child
// must not use it.
std::unique_ptr<ThreadPool> MakeThreadPool(int num_threads);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_THREAD_POOL_H_
