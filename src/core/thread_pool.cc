#include "src/core/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/core/fork.h"

namespace xla_gpu {
namespace {

// The state of one ParallelFor. Helpers that a busy pool starts late (after ParallelFor returned)
// find no index left and never touch `task`, which lives on the caller's stack.
struct Loop {
  int64_t n;
  const std::function<void(int64_t)>* task;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;
  std::exception_ptr error;  // the first that a task threw; guarded by mutex until all is done
  std::fenv_t callers;       // rounding, and whether subnormals count

  // A helper computes as the caller does: a result must not hang on the thread that it is from.
  void Help() {
    if (next.load(std::memory_order_relaxed) >= n) return;
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&callers);
    Work();
    std::fesetenv(&own);
  }

  void Work() {
    int64_t finished = 0;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
      try {
        (*task)(i);
      } catch (...) {
        // The tasks that nobody has begun count as done.
        finished += n - std::min(n, next.exchange(n, std::memory_order_relaxed));
        std::lock_guard<std::mutex> lock(mutex);
        if (error == nullptr) error = std::current_exception();
      }
      ++finished;
    }
    if (finished == 0) return;
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == n) {
      std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_all();
    }
  }

  void Wait() {
    if (done.load(std::memory_order_acquire) == n) return;
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done.load(std::memory_order_acquire) == n; });
  }
};

class OwnThreadPool final : public ThreadPool {
 public:
  // Of at most `num_threads` threads: as many as the system grants.
  explicit OwnThreadPool(int num_threads) {
    try {
      for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Serve(); });
    } catch (const std::exception&) {
      // No more threads, or no memory for them.
    }
  }

  ~OwnThreadPool() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int num_threads() const override { return static_cast<int>(threads_.size()) + 1; }

 protected:
  void Schedule(std::function<void()> helper) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(helper));
    }
    wake_.notify_one();
  }

 private:
  void Serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      std::function<void()> helper = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      helper();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Processors that this process may run on; hardware_concurrency() counts the others too.
int NumProcessors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

struct DefaultPool {
  OwnThreadPool pool{NumProcessors()};
};
constinit PerProcess<DefaultPool> default_pool;

}  // namespace

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t)>& task) {
  const int64_t helpers = std::min<int64_t>(num_threads(), n) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->n = n;
  loop->task = &task;
  std::fegetenv(&loop->callers);
  try {
    for (int64_t i = 0; i < helpers; ++i) Schedule([loop] { loop->Help(); });
  } catch (const std::exception&) {
    // Out of memory. The helpers that are on their way need this stack, and fewer will do.
  }
  loop->Work();
  loop->Wait();
  if (loop->error != nullptr) std::rethrow_exception(std::move(loop->error));
}

void ThreadPool::Submit(std::function<void()> task) {
  if (num_threads() < 2) return task();
  // The last owner runs the task: the helper, or a pool that drops the helper.
  struct Once {
    std::function<void()> task;
    ~Once() { task(); }
  };
  std::shared_ptr<Once> once(new Once{std::move(task)});
  Schedule([once = std::move(once)]() mutable { once.reset(); });
}

ThreadPool& DefaultThreadPool() { return default_pool.Get().pool; }

std::unique_ptr<ThreadPool> MakeThreadPool(int num_threads) {
  return std::make_unique<OwnThreadPool>(std::max(1, num_threads));
}

}  // namespace xla_gpu
