// Runs a program to its end, for a bounded time and output, from inside any host process: threads,
// SIGCHLD ignored, SIGPIPE at its default, closed standard descriptors.
#ifndef XLA_GPU_CORE_CHILD_PROCESS_H_
#define XLA_GPU_CORE_CHILD_PROCESS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/child.h"
#include "src/core/status.h"

namespace xla_gpu {

struct ChildResult : ChildEnd {
  std::string out;
  std::string err;  // at most its last 64 KiB: an error is told last
  bool wrote_too_much = false;

  std::string HowItEnded() const;
};

struct ChildLimits {
  // Past them it is killed, with what it started.
  std::chrono::milliseconds timeout{};
  size_t max_out = size_t{1} << 30;
  // Takes the child's output as it comes, in the place of ChildResult::out. True, for progress,
  // begins the timeout anew.
  std::function<bool(std::string_view bytes)> on_out;
  // In the host's process group, so that Ctrl-C at a terminal reaches it; what it has started is
  // then not killed with it.
  bool same_group = false;
};

// `command` is looked for on PATH unless it has a slash, and gets `input` on its stdin. The error
// is that of starting it; how the program fares is in the result.
StatusOr<ChildResult> RunChild(const std::vector<std::string>& command, std::string_view input,
                               const ChildLimits& limits);
inline StatusOr<ChildResult> RunChild(const std::vector<std::string>& command,
                                      std::string_view input, std::chrono::milliseconds timeout) {
  return RunChild(command, input, ChildLimits{.timeout = timeout});
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_CHILD_PROCESS_H_
