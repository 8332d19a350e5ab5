// What a forked child may still use. fork() copies one thread alone: what others had locked stays
// locked, what they were changing stays half changed, and nobody finishes their work.
#ifndef XLA_GPU_CORE_FORK_H_
#define XLA_GPU_CORE_FORK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace xla_gpu {

namespace internal {
extern std::atomic<int64_t> fork_generation;
}  // namespace internal

// How many forks lie between this process and the one that loaded the library.
inline int64_t ForkGeneration() {
  return internal::fork_generation.load(std::memory_order_relaxed);
}

// A T that is made at first use in each process: a child makes its own and never looks at its
// parent's. Never destroyed, since other threads may run while the process exits. For variables at
// namespace scope only: a function's own have a guard, which a fork can leave locked.
template <typename T>
class PerProcess {
 public:
  T& Get() {
    Made* made = made_.load(std::memory_order_acquire);
    if (made != nullptr && made->generation == ForkGeneration()) [[likely]]
      return made->value;
    return Make(made);
  }

 private:
  struct Made {
    const int64_t generation = ForkGeneration();
    const Made* parents = nullptr;  // keeps it reachable, so that it is no leak
    T value{};
  };

  // Threads may make one each at the same time; the first one stays.
  T& Make(Made* parents) {
    auto made = std::make_unique<Made>();
    made->parents = parents;
    if (made_.compare_exchange_strong(parents, made.get(), std::memory_order_acq_rel)) {
      return made.release()->value;
    }
    return parents->value;
  }

  std::atomic<Made*> made_{nullptr};
};

// A mutex that no child finds locked: fork() waits for its holder. For what a child shares with its
// parent and PerProcess cannot serve. Hold it shortly; take no second one and do not fork under it.
// For variables at namespace scope only.
class ForkSafeMutex {
 public:
  ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  ForkSafeMutex* next() const { return next_; }

 private:
  std::mutex mutex_;
  ForkSafeMutex* const next_;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FORK_H_
