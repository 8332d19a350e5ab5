// Errors about one tensor of a call, in the form that all of them have: what came, what is allowed.
#ifndef XLA_GPU_CORE_EXPECT_H_
#define XLA_GPU_CORE_EXPECT_H_

#include <string_view>

#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace xla_gpu {

// "op: name is bf16[8,32]; rule", the rule in parts.
template <typename... Parts>
Status Wrong(std::string_view op, std::string_view name, const TensorView& came,
             const Parts&... rule) {
  return InvalidArgument(op, ": ", name, " is ", came.ToString(), "; ", rule...);
}

// That error, with the rule "it must be <expected><why>", unless `came` is so.
inline Status Expect(std::string_view op, std::string_view name, const TensorView& came,
                     const TensorSpec& expected, std::string_view why) {
  if (expected.Matches(came)) return OkStatus();
  return Wrong(op, name, came, "it must be ", expected.ToString(), why);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_EXPECT_H_
