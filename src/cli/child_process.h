// Running a command in a child process, its output read line by line, a crash or a hang survived.
#ifndef XLA_GPU_CLI_CHILD_PROCESS_H_
#define XLA_GPU_CLI_CHILD_PROCESS_H_

#include <functional>
#include <string>
#include <vector>

#include "src/core/child_process.h"
#include "src/core/status.h"

namespace xla_gpu::cli {

// Runs `command` (found on PATH) and calls `on_line` for each line of its standard output as it
// comes; a line of more than 1 MiB is left out. A child that writes no line for which `on_line`
// says true for `timeout_s` seconds is killed, and one that writes more than 8 MiB.
StatusOr<ChildResult> RunLines(const std::vector<std::string>& command, int timeout_s,
                               const std::function<bool(const std::string&)>& on_line);

// This program, to run itself as a child.
std::string SelfPath();

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_CHILD_PROCESS_H_
