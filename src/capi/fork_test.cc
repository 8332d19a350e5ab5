// A child forked while other threads run ops is a process like any other: it never hangs, and runs
// ops of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "xla_gpu/xla_gpu.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif

namespace {

constexpr int64_t kSeqs = 8;
constexpr int64_t kHeadDim = 8;

// Eight sequences of one token each, so that a thread pool has something to share out.
class AttentionCall {
 public:
  AttentionCall() {
    const auto add = [](std::vector<xla_gpu_tensor>& to, void* data, int32_t dtype,
                        const std::vector<int64_t>& dims) {
      xla_gpu_tensor tensor = {};
      tensor.struct_size = sizeof(tensor);
      tensor.data = data;
      tensor.dtype = dtype;
      tensor.rank = static_cast<int32_t>(dims.size());
      tensor.dims = dims.data();
      to.push_back(tensor);
    };
    for (int64_t i = 0; i < kSeqs; ++i) {
      lens_[i] = static_cast<int32_t>(i % 4 + 1);
      tables_[i] = static_cast<int32_t>(i % 2);
      starts_[i + 1] = static_cast<int32_t>(i + 1);
    }
    for (size_t i = 0; i < query_.size(); ++i) query_[i] = static_cast<float>(i % 7) * 0.1f;
    for (size_t i = 0; i < cache_.size(); ++i) cache_[i] = static_cast<float>(i % 11) * 0.1f;
    add(args_, query_.data(), XLA_GPU_DTYPE_F32, query_dims_);
    add(args_, cache_.data(), XLA_GPU_DTYPE_F32, cache_dims_);
    add(args_, lens_.data(), XLA_GPU_DTYPE_I32, lens_dims_);
    add(args_, tables_.data(), XLA_GPU_DTYPE_I32, tables_dims_);
    add(args_, starts_.data(), XLA_GPU_DTYPE_I32, starts_dims_);
    add(args_, &num_seqs_, XLA_GPU_DTYPE_I32, num_dims_);
    add(results_, out_.data(), XLA_GPU_DTYPE_F32, query_dims_);
  }
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  // The error's message, or "". Each scale is a problem of its own.
  std::string Run(double scale) {
    xla_gpu_attr attr = {};
    attr.struct_size = sizeof(attr);
    attr.name = "scale";
    attr.type = XLA_GPU_ATTR_FLOAT;
    attr.f = scale;
    xla_gpu_call call = {};
    call.struct_size = sizeof(call);
    call.op = "paged_attention";
    call.platform = "Host";
    call.args = args_.data();
    call.num_args = args_.size();
    call.results = results_.data();
    call.num_results = results_.size();
    call.attrs = &attr;
    call.num_attrs = 1;
    xla_gpu_status* status = xla_gpu_run(&call);
    std::string message = xla_gpu_status_message(status);
    xla_gpu_status_free(status);
    return message;
  }

  const std::vector<float>& out() const { return out_; }

 private:
  const std::vector<int64_t> query_dims_ = {kSeqs, 2, kHeadDim}, cache_dims_ = {2, 4, 4, kHeadDim},
                             lens_dims_ = {kSeqs}, tables_dims_ = {kSeqs, 1},
                             starts_dims_ = {kSeqs + 1}, num_dims_ = {1};
  std::vector<float> query_ = std::vector<float>(kSeqs * 2 * kHeadDim),
                     cache_ = std::vector<float>(2 * 4 * 4 * kHeadDim), out_ = query_;
  std::vector<int32_t> lens_ = std::vector<int32_t>(kSeqs), tables_ = lens_,
                       starts_ = std::vector<int32_t>(kSeqs + 1);
  int32_t num_seqs_ = kSeqs;
  std::vector<xla_gpu_tensor> args_, results_;
};

// Runs `body` in a child; the signal or exit code it ended with, 0 if it returned true. One that
// hangs is ended by SIGALRM.
int InChild(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Fork, AChildForkedWhileThreadsRunOpsRunsThemToo) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan ends a forked child that starts threads";
  AttentionCall reference;
  ASSERT_EQ(reference.Run(1.0), "");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&stop, t] {
      AttentionCall call;
      // Known problems and new ones by turns: the cache of plans is read and written.
      for (int i = 0; !stop; ++i) EXPECT_EQ(call.Run(i % 2 == 0 ? 1.0 : 2.0 + i * 4 + t), "");
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  int forks = 0, failed = 0;
  for (; failed == 0 && std::chrono::steady_clock::now() < end; ++forks) {
    failed = InChild([&reference] {
      AttentionCall call;
      for (int i = 0; i < 3; ++i) {
        if (call.Run(1.0) != "" || call.out() != reference.out()) return false;
      }
      return call.Run(0.5) == "";
    });
  }
  EXPECT_EQ(failed, 0) << "at fork " << forks;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(forks, 10);
  RecordProperty("forks", forks);
}

int64_t ResidentKilobytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  const int read = fscanf(file, "%ld %ld", &size, &resident);
  fclose(file);
  return read == 2 ? resident * (sysconf(_SC_PAGESIZE) / 1024) : 0;
}

TEST(Fork, AChildsCallsLeaveNothingBehind) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan ends a forked child that starts threads";
  AttentionCall call;
  ASSERT_EQ(call.Run(1.0), "");  // the parent has its pool
  EXPECT_EQ(InChild([&call] {
              for (int i = 0; i < 1000; ++i) call.Run(1.0);
              const int64_t before = ResidentKilobytes();
              for (int i = 0; i < 50'000; ++i) call.Run(1.0);
              return ResidentKilobytes() - before < 2000;
            }),
            0);
}

TEST(Fork, GrandchildrenRunOpsToo) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan ends a forked child that starts threads";
  AttentionCall call;
  ASSERT_EQ(call.Run(1.0), "");
  EXPECT_EQ(InChild([&call] {
              if (call.Run(1.0) != "") return false;
              return InChild([&call] { return call.Run(1.0) == ""; }) == 0;
            }),
            0);
}

}  // namespace
