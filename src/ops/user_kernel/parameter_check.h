// A check that the compiler of a kernel's source makes: what the function takes against what the
// definition says.
#ifndef XLA_GPU_OPS_USER_KERNEL_PARAMETER_CHECK_H_
#define XLA_GPU_OPS_USER_KERNEL_PARAMETER_CHECK_H_

#include <string>

#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {

// C++ or CUDA to stand behind the source's text, where that alone does not tell the types of all
// parameters (a template's, or given ones): a static_assert on their number, and on the size and
// the class of each that is a pointer or a number. Empty where the text tells them.
std::string ParameterCheck(const Implementation& implementation);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_PARAMETER_CHECK_H_
