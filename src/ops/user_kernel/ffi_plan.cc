// ffi: an XLA FFI handler. What runs it includes XLA's headers and so lies in src/xla/ffi_host.cc.
#include <algorithm>
#include <utility>

#include "src/core/ffi_handler.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/library.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {

StatusOr<std::unique_ptr<Plan>> MakeFfiPlan(std::shared_ptr<const Definition> definition,
                                            Platform platform, const Call& call, int device) {
  const Implementation& implementation =
      *definition->implementations[static_cast<size_t>(platform)];
  FfiHandler handler{
      .platform = platform, .device = device, .capture = definition->capture, .scalars = {}};
  const StatusOr<const void*> found = FunctionOf(implementation, implementation.symbol);
  if (!found.ok()) return found.status().After(definition->name, ": ");
  for (size_t i = 0; i < implementation.stages.size(); ++i) {
    handler.stages[i] = reinterpret_cast<const void*>(implementation.stages[i]);
  }
  handler.stages.back() = *found;
  handler.num_args = call.args.size();
  handler.num_results = call.results.size();
  handler.type_id = reinterpret_cast<const void*>(implementation.type_id);
  handler.type_info = reinterpret_cast<const void*>(implementation.type_info);
  for (const Scalar& scalar : definition->scalars) {
    const AttrValue* value = call.attributes->Find(scalar.name);
    if (value == nullptr) continue;
    handler.scalars.push_back({scalar.name, scalar.type, NumberBits(scalar.type, *value)});
  }
  StatusOr<std::unique_ptr<Plan>> plan = make_ffi_handler_plan(std::move(handler));
  if (!plan.ok()) return plan.status().After(definition->name, ": ");
  return plan;
}

}  // namespace xla_gpu::user_kernel
