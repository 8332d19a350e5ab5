#include "src/core/fork.h"

#include <pthread.h>

namespace xla_gpu {

constinit std::atomic<int64_t> internal::fork_generation{0};

namespace {

// All there are. They come while the library is loaded, by one thread.
constinit ForkSafeMutex* mutexes = nullptr;

void LockAll() {
  for (ForkSafeMutex* mutex = mutexes; mutex != nullptr; mutex = mutex->next()) mutex->lock();
}

void UnlockAll() {
  for (ForkSafeMutex* mutex = mutexes; mutex != nullptr; mutex = mutex->next()) mutex->unlock();
}

void UnlockAllInChild() {
  internal::fork_generation.fetch_add(1, std::memory_order_relaxed);
  UnlockAll();
}

[[maybe_unused]] const int watched = pthread_atfork(LockAll, UnlockAll, UnlockAllInChild);

}  // namespace

ForkSafeMutex::ForkSafeMutex() : next_(mutexes) { mutexes = this; }

}  // namespace xla_gpu
