// Calling a C function whose signature is known at run time alone.
#ifndef XLA_GPU_OPS_USER_KERNEL_CPU_FUNCTION_CALL_H_
#define XLA_GPU_OPS_USER_KERNEL_CPU_FUNCTION_CALL_H_

#include <cstdint>
#include <span>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace xla_gpu::user_kernel {

// Calls `function` with values in the lowest bytes of 64 bits, as parameters of these types, by the
// platform's C calling convention (System V x86-64, AAPCS64), and returns its int result, which
// means nothing for a function that returns void. At most kMaxParameters values (parameters.h).
int CallFunction(const void* function, std::span<const DType> types,
                 std::span<const uint64_t> values);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_CPU_FUNCTION_CALL_H_
