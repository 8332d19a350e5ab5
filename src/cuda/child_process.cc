#include "src/cuda/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "src/core/strings.h"
#include "src/cuda/unique_fd.h"

extern char** environ;

namespace xla_gpu::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxErr = 64 << 10;
constexpr size_t kMaxOut = size_t{1} << 30;

// Both ends above the standard descriptors, which the host may have closed and the child's dup2
// would then overwrite.
Status MakeChannel(UniqueFd& ours, UniqueFd& childs) {
  // Sockets, not pipes: send() can be told not to raise SIGPIPE.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Internal(StrCat("cuda: socketpair failed: ", std::strerror(errno)));
  }
  UniqueFd first(ends[0]), second(ends[1]);
  ours = UniqueFd(fcntl(first.get(), F_DUPFD_CLOEXEC, 3));
  childs = UniqueFd(fcntl(second.get(), F_DUPFD_CLOEXEC, 3));
  if (!ours.open() || !childs.open()) {
    return ResourceExhausted(StrCat("cuda: no file descriptor is left: ", std::strerror(errno)));
  }
  return OkStatus();
}

struct SpawnSettings {
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);  // so that it can be killed with what it started
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// A process started here: how it ended goes into `result`, and it does not outlive this.
class Child {
 public:
  Child(pid_t pid, ChildResult& result) : pid_(pid), result_(result) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { Kill(); }

  bool HasEnded() {
    if (ended_) return true;
    int status = 0;
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return false;
    ended_ = true;
    if (got < 0) return true;  // ECHILD: somebody else has collected it
    if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
    return true;
  }

  // False if the deadline came first.
  bool WaitUntil(Clock::time_point deadline) {
    for (auto pause = std::chrono::microseconds(100); !HasEnded();
         pause = std::min(pause * 2, std::chrono::microseconds(20'000))) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

  void Kill() {
    if (ended_) return;
    kill(-pid_, SIGKILL);
    WaitUntil(Clock::now() + std::chrono::seconds(10));
  }

 private:
  const pid_t pid_;
  ChildResult& result_;
  bool ended_ = false;
};

// The child's three channels, served from one thread by poll.
//
// A process that another thread of the host forks meanwhile has copies of all descriptors, so that
// closing one ends nothing and the end of the child's output may never come: hence the shutdown,
// and the look whether the child still runs.
class Conversation {
 public:
  Conversation(UniqueFd in, UniqueFd out, UniqueFd err, std::string_view input)
      : in_(std::move(in)), out_(std::move(out)), err_(std::move(err)), input_(input) {
    if (input_.empty()) CloseInput();
  }

  // Until the child has closed its output or has ended; false if the deadline came first.
  bool RunUntil(Clock::time_point deadline, Child& child, ChildResult& result) {
    constexpr int64_t kLookMs = 20;
    for (bool ended = false; out_.open() || err_.open();) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      // poll skips entries whose descriptor is -1.
      pollfd entries[3] = {
          {in_.get(), POLLOUT, 0}, {out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
      const int ready =
          poll(entries, 3, ended ? 0 : static_cast<int>(std::min<int64_t>(left, kLookMs)));
      if (ready < 0 && errno != EINTR) return false;
      if (ready == 0) {
        if (ended) return true;  // all that it wrote has been read
        ended = child.HasEnded();
        if (ended) CloseInput();
      }
      if (ready <= 0) continue;
      if (entries[0].revents != 0) Send();
      if (entries[1].revents != 0) Receive(out_, result.out, kMaxOut);
      if (entries[2].revents != 0) Receive(err_, result.err, kMaxErr);
    }
    return true;
  }

 private:
  void CloseInput() {
    if (in_.open()) shutdown(in_.get(), SHUT_WR);
    in_.Close();
  }

  void Send() {
    const ssize_t n = send(in_.get(), input_.data(), input_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno != EINTR && errno != EAGAIN)
        CloseInput();  // the child does not read: its answer tells
      return;
    }
    input_.remove_prefix(static_cast<size_t>(n));
    if (input_.empty()) CloseInput();
  }

  // What is past `limit` is read, so that the child does not block, and dropped.
  static void Receive(UniqueFd& fd, std::string& into, size_t limit) {
    char buffer[1 << 16];
    const ssize_t n = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
      fd.Close();
      return;
    }
    into.append(buffer, std::min(static_cast<size_t>(n), limit - into.size()));
  }

  UniqueFd in_, out_, err_;
  std::string_view input_;
};

}  // namespace

std::string ChildResult::HowItEnded() const {
  if (timed_out) return "did not end in time and was killed";
  if (signal >= 0) return StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  if (exit_code >= 0) return StrCat("ended with exit code ", exit_code);
  return "ended in a way unknown here, because this process does not collect its children "
         "(SIGCHLD)";
}

StatusOr<ChildResult> RunChild(const std::vector<std::string>& command, std::string_view input,
                               std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  UniqueFd ours[3], childs[3];
  SpawnSettings settings;
  for (int i = 0; i < 3; ++i) {
    XLA_GPU_RETURN_IF_ERROR(MakeChannel(ours[i], childs[i]));
    posix_spawn_file_actions_adddup2(&settings.actions, childs[i].get(), i);
  }
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (int error =
          posix_spawn(&pid, argv[0], &settings.actions, &settings.attributes, argv.data(), environ);
      error != 0) {
    return FailedPrecondition(
        StrCat("cuda: ", command[0], " could not be started: ", std::strerror(error)));
  }
  ChildResult result;
  Child child(pid, result);
  for (UniqueFd& fd : childs) fd.Close();
  Conversation conversation(std::move(ours[0]), std::move(ours[1]), std::move(ours[2]), input);
  if (!conversation.RunUntil(deadline, child, result) || !child.WaitUntil(deadline)) {
    result.timed_out = true;
    child.Kill();
  }
  return result;
}

}  // namespace xla_gpu::cuda
