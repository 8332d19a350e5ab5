// Shared libraries of the user's, and the functions in them.
#ifndef XLA_GPU_OPS_USER_KERNEL_LIBRARY_H_
#define XLA_GPU_OPS_USER_KERNEL_LIBRARY_H_

#include <string>

#include "src/core/status.h"
#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {

// Opened once a process and never closed: plans hold its functions.
StatusOr<void*> OpenLibrary(const std::string& path);

// The implementation's `address`, or the address of `symbol` in its library. Errors name the
// library and what it lacks.
StatusOr<const void*> FunctionOf(const Implementation& implementation, const std::string& symbol);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_LIBRARY_H_
