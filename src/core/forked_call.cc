#include "src/core/forked_call.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace xla_gpu {
namespace {

using Clock = std::chrono::steady_clock;

void CloseAllFiles() {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 0U, ~0U, 0U) == 0) return;
#endif
  rlimit limit{};  // kernels before 5.9
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1024;
  for (rlim_t fd = 0; fd < limit.rlim_cur; ++fd) close(static_cast<int>(fd));
}

// Takes from the child what could do harm outside of it, or keep it from ending.
void Isolate(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  prctl(PR_SET_DUMPABLE, 0);  // no core file
  setpgid(0, 0);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  CloseAllFiles();
  // 0, 1 and 2 again: buffered output of the host's, flushed by an exit(), goes nowhere.
  for (int fd = 0; fd < 3; ++fd) (void)!open("/dev/null", O_RDWR);
}

// What parent and child share; the answer's bytes follow.
struct alignas(std::max_align_t) Shared {
  std::atomic<bool> returned;  // zero in fresh memory
  void* answer() { return this + 1; }
};

// noexcept: neither an exception nor a thread's end may unwind into the host's code in the child.
[[noreturn]] void RunChild(const std::function<void(void*)>& body, Shared* shared,
                           pid_t parent) noexcept {
  Isolate(parent);
  body(shared->answer());
  shared->returned.store(true);
  _exit(0);
}

}  // namespace

StatusOr<bool> RunForked(const std::function<void(void* answer)>& body, void* answer, size_t size,
                         std::chrono::milliseconds limit, ChildEnd& end) {
  const auto deadline = Clock::now() + limit;
  const size_t mapped = sizeof(Shared) + size;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ResourceExhausted("mmap failed: ", std::strerror(errno));
  auto* shared = static_cast<Shared*>(memory);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  const int error = errno;
  if (pid == 0) RunChild(body, shared, parent);
  if (pid > 0) {
    Child child(pid, /*same_group=*/false, end);
    end.timed_out = !child.WaitUntil(deadline);
  }
  const bool returned = shared->returned.load();
  if (returned) std::memcpy(answer, shared->answer(), size);
  munmap(memory, mapped);
  if (pid < 0) {
    return ResourceExhausted("no child process could be made: ", std::strerror(error));
  }
  return returned;
}

}  // namespace xla_gpu
