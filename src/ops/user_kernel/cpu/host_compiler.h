// C++ source of the user's, compiled by the system's compiler and loaded.
#ifndef XLA_GPU_OPS_USER_KERNEL_CPU_HOST_COMPILER_H_
#define XLA_GPU_OPS_USER_KERNEL_CPU_HOST_COMPILER_H_

#include <string>

#include "src/core/status.h"
#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {

// The address of the implementation's entry. Compiled once for its text, the files that it
// includes, options, compiler and, where options name this machine's, processor: kept in memory,
// and on disk beside the CUDA kernels (docs/environment.md). Other entries of the text are taken
// from what is in memory, if it exports a function of their name; they then share the text's static
// variables. The compiler is $CXX, else c++; it has XLA_GPU_COMPILE_TIMEOUT seconds. A text that
// does not compile is INVALID_ARGUMENT with the compiler's message, in which the user's file has
// its own name.
StatusOr<const void*> CompileHostSource(const std::string& kernel,
                                        const Implementation& implementation);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_CPU_HOST_COMPILER_H_
