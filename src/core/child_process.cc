#include "src/core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "src/core/unique_fd.h"

extern char** environ;

namespace xla_gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxErr = 64 << 10;

// Both ends above the standard descriptors, which the host may have closed and the child's dup2
// would then overwrite.
Status MakeChannel(UniqueFd& ours, UniqueFd& childs) {
  // Sockets, not pipes: send() can be told not to raise SIGPIPE.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Internal("socketpair failed: ", std::strerror(errno));
  }
  UniqueFd first(ends[0]), second(ends[1]);
  ours = UniqueFd(fcntl(first.get(), F_DUPFD_CLOEXEC, 3));
  childs = UniqueFd(fcntl(second.get(), F_DUPFD_CLOEXEC, 3));
  if (!ours.open() || !childs.open()) {
    return ResourceExhausted("no file descriptor is left: ", std::strerror(errno));
  }
  return OkStatus();
}

struct SpawnSettings {
  explicit SpawnSettings(bool same_group) {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);  // so that it can be killed with what it started
    const int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    posix_spawnattr_setflags(
        &attributes, static_cast<short>(same_group ? flags : flags | POSIX_SPAWN_SETPGROUP));
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

// The child's three channels, served from one thread by poll.
//
// A process that another thread of the host forks meanwhile has copies of all descriptors, so that
// closing one ends nothing and the end of the child's output may never come: hence the shutdown,
// and the look whether the child still runs.
class Conversation {
 public:
  Conversation(UniqueFd in, UniqueFd out, UniqueFd err, std::string_view input,
               const ChildLimits& limits, ChildResult& result)
      : in_(std::move(in)),
        out_(std::move(out)),
        err_(std::move(err)),
        input_(input),
        limits_(limits),
        result_(result) {
    if (input_.empty()) CloseInput();
  }

  // Until the child has closed its output or has ended; false if a limit came first.
  bool Run(Child& child) {
    constexpr int64_t kLookMs = 20;
    for (bool ended = false; out_.open() || err_.open();) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
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
      if (entries[1].revents != 0 && !TakeOut(Receive(out_))) return false;
      if (entries[2].revents != 0) TakeErr(Receive(err_));
    }
    return true;
  }

  Clock::time_point deadline() const { return deadline_; }

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

  std::string_view Receive(UniqueFd& fd) {
    const ssize_t n = recv(fd.get(), buffer_, sizeof(buffer_), MSG_DONTWAIT);
    if (n > 0) return {buffer_, static_cast<size_t>(n)};
    if (n == 0 || (errno != EINTR && errno != EAGAIN)) fd.Close();
    return {};
  }

  // False if that is too much.
  bool TakeOut(std::string_view bytes) {
    taken_ += bytes.size();
    result_.wrote_too_much = taken_ > limits_.max_out;
    if (result_.wrote_too_much) return false;
    if (!limits_.on_out) {
      result_.out += bytes;
    } else if (limits_.on_out(bytes)) {
      deadline_ = Clock::now() + limits_.timeout;
    }
    return true;
  }

  void TakeErr(std::string_view bytes) {
    result_.err += bytes;
    if (result_.err.size() > kMaxErr) result_.err.erase(0, result_.err.size() - kMaxErr);
  }

  UniqueFd in_, out_, err_;
  std::string_view input_;
  const ChildLimits& limits_;
  ChildResult& result_;
  Clock::time_point deadline_ = Clock::now() + limits_.timeout;
  size_t taken_ = 0;
  char buffer_[1 << 16];
};

}  // namespace

std::string ChildResult::HowItEnded() const {
  if (wrote_too_much) return "wrote more output than it may and was killed";
  return ChildEnd::HowItEnded();
}

StatusOr<ChildResult> RunChild(const std::vector<std::string>& command, std::string_view input,
                               const ChildLimits& limits) {
  UniqueFd ours[3], childs[3];
  SpawnSettings settings(limits.same_group);
  for (int i = 0; i < 3; ++i) {
    XLA_GPU_RETURN_IF_ERROR(MakeChannel(ours[i], childs[i]));
    posix_spawn_file_actions_adddup2(&settings.actions, childs[i].get(), i);
  }
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (int error = posix_spawnp(&pid, argv[0], &settings.actions, &settings.attributes, argv.data(),
                               environ);
      error != 0) {
    return FailedPrecondition(command[0], " could not be started: ", std::strerror(error));
  }
  ChildResult result;
  Child child(pid, limits.same_group, result);
  for (UniqueFd& fd : childs) fd.Close();
  Conversation conversation(std::move(ours[0]), std::move(ours[1]), std::move(ours[2]), input,
                            limits, result);
  if (!conversation.Run(child) || !child.WaitUntil(conversation.deadline())) {
    result.timed_out = !result.wrote_too_much;
    child.Kill();
  }
  return result;
}

}  // namespace xla_gpu
