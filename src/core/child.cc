#include "src/core/child.h"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "src/core/strings.h"

namespace xla_gpu {

using Clock = std::chrono::steady_clock;

std::string ChildEnd::HowItEnded() const {
  if (timed_out) return "did not end in time and was killed";
  if (signal >= 0) return StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  if (exit_code >= 0) return StrCat("ended with exit code ", exit_code);
  return "ended in a way unknown here, because this process does not collect its children "
         "(SIGCHLD)";
}

bool Child::HasEnded() {
  if (ended_) return true;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  ended_ = true;
  if (got < 0) return true;  // ECHILD: somebody else has collected it
  if (WIFEXITED(status)) end_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
  return true;
}

bool Child::WaitUntil(Clock::time_point deadline) {
  for (auto pause = std::chrono::microseconds(100); !HasEnded();
       pause = std::min(pause * 2, std::chrono::microseconds(20'000))) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void Child::Kill() {
  if (ended_) return;
  if (!same_group_) kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);  // it may not have had the time to be a group of its own
  WaitUntil(Clock::now() + std::chrono::seconds(10));
}

}  // namespace xla_gpu
