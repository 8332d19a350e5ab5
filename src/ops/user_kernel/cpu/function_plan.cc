// C functions that are called with the kernel's parameters: on the Host to compute, on CUDA to
// launch.
#include <array>
#include <utility>
#include <vector>

#include "src/ops/user_kernel/cpu/function_call.h"
#include "src/ops/user_kernel/cpu/host_compiler.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/library.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {

StatusOr<std::unique_ptr<Plan>> MakeFunctionPlan(std::shared_ptr<const Definition> definition,
                                                 Platform platform, const Call& call, int device) {
  const Implementation& implementation =
      *definition->implementations[static_cast<size_t>(platform)];
  const bool is_source = implementation.kind == Implementation::Kind::kHostSource;
  const auto function = is_source ? CompileHostSource(definition->name, implementation)
                                  : FunctionOf(implementation, implementation.symbol);
  if (!function.ok()) return function.status().After(definition->name, ": ");
  ParameterPlan parameters(*definition, implementation, call);
  std::vector<DType> types;
  for (size_t i = 0; i < parameters.size(); ++i) types.push_back(parameters.type(i));
  return MakePlan([function = *function, parameters = std::move(parameters),
                   types = std::move(types), returns_error = implementation.returns_error](
                      const Call& call, const ExecutionContext& context) -> Status {
    std::array<uint64_t, kMaxParameters> values;
    parameters.Fill(call, context.stream, values);
    int result = 0;
    try {
      result = CallFunction(function, types, std::span(values).first(types.size()));
    } catch (const std::exception& e) {
      return Internal("the function threw: ", e.what());
    } catch (...) {
      return Internal("the function threw what is no std::exception");
    }
    if (returns_error && result != 0) return Internal("the function returned ", result);
    return OkStatus();
  });
}

}  // namespace xla_gpu::user_kernel
