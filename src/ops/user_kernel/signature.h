// The parameters that a kernel's or function's source text declares.
#ifndef XLA_GPU_OPS_USER_KERNEL_SIGNATURE_H_
#define XLA_GPU_OPS_USER_KERNEL_SIGNATURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace xla_gpu::user_kernel {

struct DeclaredParameter {
  std::string name;
  bool is_pointer = false;
  bool is_const = false;  // a pointer to what the function only reads
  // Of the number, or of what the pointer points to; kInvalid for what is no dtype's C type (void,
  // a template's parameter, a type of the text's own).
  DType type = DType::kInvalid;
  uint64_t alignment = 1;           // of what a pointer to CUDA's vectors points to: float4*
  std::string type_parameter = {};  // "T", of a pointer to a template's; else empty
};

// The parameters of the function `entry` (a name, perhaps qualified, perhaps with template
// arguments, which are ignored), by its first declaration in the C++ or CUDA text that names them
// all; one in the scope that the entry names goes before others. Not a compiler: macros are not
// expanded, both sides of an #if are read. Safe on any text; an error where the text declares no
// such function or a parameter is no pointer or number with a name, which says what to give
// instead.
StatusOr<std::vector<DeclaredParameter>> ParseSignature(std::string_view text,
                                                        std::string_view entry);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_SIGNATURE_H_
