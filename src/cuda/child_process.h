// Runs a program to its end with bytes on its stdin, from inside any host process: threads, SIGCHLD
// ignored, SIGPIPE at its default, closed standard descriptors. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_CHILD_PROCESS_H_
#define XLA_GPU_CUDA_CHILD_PROCESS_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cuda {

struct ChildResult {
  std::string out;
  std::string err;  // at most its first 64 KiB
  bool timed_out = false;
  // How it ended: -1 where unknown, because the host process ignores SIGCHLD or waits for every
  // child itself.
  int exit_code = -1;
  int signal = -1;

  // "was killed by signal 11 (Segmentation fault)".
  std::string HowItEnded() const;
};

// The error is that of starting it; how the program fares is in the result. Past the timeout it is
// killed, with what it started.
StatusOr<ChildResult> RunChild(const std::vector<std::string>& command, std::string_view input,
                               std::chrono::milliseconds timeout);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_CHILD_PROCESS_H_
