// Running a command in a child process, its output read line by line, a crash or a hang survived.
#ifndef XLA_GPU_CLI_CHILD_PROCESS_H_
#define XLA_GPU_CLI_CHILD_PROCESS_H_

#include <functional>
#include <string>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cli {

struct ChildEnd {
  bool timed_out = false;
  int exit_code = 0;   // if it exited
  int signal = 0;      // if it was killed; then exit_code has no meaning
  std::string errors;  // what it wrote to stderr
  // "exit code 1", "signal 11 (Segmentation fault)", "no answer for 120 s".
  std::string ToString() const;
};

// Runs `command` (found on PATH) and calls `on_line` for each line of its standard output as it
// comes. A child that writes no line for `timeout_s` seconds is killed.
StatusOr<ChildEnd> RunChild(const std::vector<std::string>& command, int timeout_s,
                            const std::function<bool(const std::string&)>& on_line);

// This program, to run itself as a child.
std::string SelfPath();

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_CHILD_PROCESS_H_
