// One cell of `xla-gpu probe`: one platform name and one API version, tried in this process.
#ifndef XLA_GPU_CLI_PROBE_CELL_H_
#define XLA_GPU_CLI_PROBE_CELL_H_

#include <string>
#include <vector>

#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {

struct ProbeCell {
  std::string platform;  // as given at registration
  int api_version = 4;   // of the custom call in the module
  // The target of the cell's own: what one cell registers, no other can call.
  std::string target() const;
};

// CUDA, cuda, GPU, gpu, Host, cpu, each with API versions 0 to 4.
std::vector<ProbeCell> AllProbeCells();

struct ProbeOutcome {
  bool ok = false;
  // "ok", or where it ended: "not registered", "compile", "run", "wrong result"; the parent process
  // adds "crash" and "timeout".
  std::string result;
  std::string message;  // XLA's own text, or why the plugin's C API cannot register such a handler
};

// Registers XlaGpuSimpleAdd's handler under the cell's target and platform name, compiles a module
// that calls it by the cell's API version, runs it and compares the numbers. Where the handler
// could not be registered the module is compiled nevertheless, for XLA's answer.
ProbeOutcome TryProbeCell(const xla::PjrtClient& client, const ProbeCell& cell);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PROBE_CELL_H_
