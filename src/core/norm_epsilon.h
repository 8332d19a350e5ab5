// The attribute epsilon of ops with RMSNorm.
#ifndef XLA_GPU_CORE_NORM_EPSILON_H_
#define XLA_GPU_CORE_NORM_EPSILON_H_

#include <cmath>
#include <string_view>

#include "src/core/op.h"
#include "src/core/strings.h"

namespace xla_gpu {

// `of`: "of the norm".
inline AttrSpec NormEpsilon(std::string_view of) {
  return {.name = "epsilon",
          .type = AttrType::kFloat,
          .doc = StrCat(of, ": finite, at least 0"),
          .default_value = 1e-6,
          .keyword_only = true};
}

// Its value in a call of `op`, or an error.
inline StatusOr<float> NormEpsilonOf(std::string_view op, const Attributes& attributes) {
  const auto epsilon = static_cast<float>(attributes.GetFloat("epsilon"));
  if (epsilon >= 0 && !std::isinf(epsilon)) return epsilon;
  return InvalidArgument(op, ": attribute 'epsilon' is ", epsilon,
                         "; it must be a finite f32 number of at least 0");
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_NORM_EPSILON_H_
