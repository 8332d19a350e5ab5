// Errors about one tensor of a call, in the form that all of them have: what came, what is allowed.
#ifndef XLA_GPU_CORE_EXPECT_H_
#define XLA_GPU_CORE_EXPECT_H_

#include <string_view>

#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace xla_gpu {

// "op: name is bf16[8,32]; rule".
Status Wrong(std::string_view op, std::string_view name, const TensorView& came,
             std::string_view rule);

// That error, with the rule "it must be <expected><why>", unless `came` is so.
Status Expect(std::string_view op, std::string_view name, const TensorView& came,
              const TensorSpec& expected, std::string_view why);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_EXPECT_H_
