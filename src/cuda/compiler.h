// Compiling device code in a child process. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_COMPILER_H_
#define XLA_GPU_CUDA_COMPILER_H_

#include <chrono>
#include <string>

#include "src/core/status.h"
#include "src/cuda/compile_protocol.h"

namespace xla_gpu::cuda {

// The helper program xla-gpu-compile: XLA_GPU_COMPILER if set, else beside this library or program
// or where an installation puts it.
StatusOr<std::string> FindCompilerProgram();

// XLA_GPU_COMPILE_TIMEOUT in seconds, 300 if unset.
StatusOr<std::chrono::milliseconds> CompileTimeout();

struct CompileResult {
  std::string cubin;
  std::string log;    // warnings
  std::string entry;  // as CompileResponse has it
  std::string ptx;
};

// `name` is what messages call the kernel. Errors: INVALID_ARGUMENT, the source does not compile
// (with the compiler's log); UNAVAILABLE, this NVRTC cannot be opened; INTERNAL, the compiler
// crashed, or ran past CompileTimeout().
StatusOr<CompileResult> CompileInChild(const CompileRequest& request, const std::string& name);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_COMPILER_H_
