#include "src/core/expect.h"

#include "src/core/strings.h"

namespace xla_gpu {

Status Wrong(std::string_view op, std::string_view name, const TensorView& came,
             std::string_view rule) {
  return InvalidArgument(op, ": ", name, " is ", came.ToString(), "; ", rule);
}

Status Expect(std::string_view op, std::string_view name, const TensorView& came,
              const TensorSpec& expected, std::string_view why) {
  if (expected.Matches(came)) return OkStatus();
  return Wrong(op, name, came, StrCat("it must be ", expected.ToString(), why));
}

}  // namespace xla_gpu
