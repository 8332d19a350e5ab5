// A child process of ours, until its end.
#ifndef XLA_GPU_CORE_CHILD_H_
#define XLA_GPU_CORE_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <string>

namespace xla_gpu {

// How a child process ended.
struct ChildEnd {
  bool timed_out = false;
  // -1 where unknown, because the host process ignores SIGCHLD or waits for every child itself.
  int exit_code = -1;
  int signal = -1;

  // "was killed by signal 11 (Segmentation fault)".
  std::string HowItEnded() const;
};

// How the process ended goes into `end`, and it does not outlive this. Unless it is of the host's
// group, what it has started is killed with it.
class Child {
 public:
  Child(pid_t pid, bool same_group, ChildEnd& end)
      : pid_(pid), same_group_(same_group), end_(end) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { Kill(); }

  bool HasEnded();
  // False if the deadline came first.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline);
  void Kill();

 private:
  const pid_t pid_;
  const bool same_group_;
  ChildEnd& end_;
  bool ended_ = false;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_CHILD_H_
