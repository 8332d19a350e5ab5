#include "src/cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "src/core/strings.h"

extern char** environ;

namespace xla_gpu::cli {
namespace {

// Both ends are closed on exec; the child gets its own by the spawn's file actions.
class Pipe {
 public:
  Pipe() { ok_ = pipe2(ends_.data(), O_CLOEXEC) == 0; }
  ~Pipe() {
    CloseWriter();
    if (ok_) close(ends_[0]);
  }
  void CloseWriter() {
    if (ok_ && ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  bool ok() const { return ok_; }
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }

 private:
  std::array<int, 2> ends_ = {-1, -1};
  bool ok_ = false;
};

// Keeps the end of what came: an error is told last.
void AppendBounded(std::string& text, const char* data, size_t size) {
  constexpr size_t kKept = 64 << 10;
  text.append(data, size);
  if (text.size() > 2 * kKept) text.erase(0, text.size() - kKept);
}

}  // namespace

std::string ChildEnd::ToString() const {
  if (timed_out) return "it gave no answer in time and was ended";
  if (signal != 0) return StrCat("signal ", signal, " (", strsignal(signal), ")");
  return StrCat("exit code ", exit_code);
}

StatusOr<ChildEnd> RunChild(const std::vector<std::string>& command, int timeout_s,
                            const std::function<bool(const std::string&)>& on_line) {
  Pipe out;
  Pipe err;
  if (!out.ok() || !err.ok()) return Unavailable(StrCat("pipe: ", std::strerror(errno)));
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.writer(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.writer(), STDERR_FILENO);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return Unavailable(StrCat(command[0], ": ", std::strerror(failed)));
  out.CloseWriter();
  err.CloseWriter();

  ChildEnd end;
  std::string line;
  std::array<pollfd, 2> polled = {pollfd{out.reader(), POLLIN, 0}, pollfd{err.reader(), POLLIN, 0}};
  std::array<char, 65536> buffer;
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    const int ready = poll(polled.data(), polled.size(), timeout_s * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      end.timed_out = true;
      kill(pid, SIGKILL);
      break;
    }
    for (pollfd& p : polled) {
      if (p.fd < 0 || p.revents == 0) continue;
      const ssize_t size = read(p.fd, buffer.data(), buffer.size());
      if (size <= 0) {
        p.fd = -1;  // closed: poll leaves it out
        continue;
      }
      if (&p == &polled[1]) {
        AppendBounded(end.errors, buffer.data(), static_cast<size_t>(size));
        continue;
      }
      line.append(buffer.data(), static_cast<size_t>(size));
      for (size_t at; (at = line.find('\n')) != std::string::npos; line.erase(0, at + 1)) {
        on_line(line.substr(0, at));
      }
    }
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

std::string SelfPath() {
  std::error_code error;
  return std::filesystem::canonical("/proc/self/exe", error).string();
}

}  // namespace xla_gpu::cli
