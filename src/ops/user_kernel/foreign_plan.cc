#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {

StatusOr<std::unique_ptr<Plan>> MakeTvmFfiPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  return Unimplemented(definition->name, ": TVM-FFI functions");
}

StatusOr<std::unique_ptr<Plan>> MakeLegacyPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  return Unimplemented(definition->name, ": functions of XLA's legacy signatures");
}

}  // namespace xla_gpu::user_kernel
