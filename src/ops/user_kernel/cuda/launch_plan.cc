// Kernels that the driver launches: CUDA source by NVRTC, and machine code as it comes.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "src/core/strings.h"
#include "src/cuda/kernel.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/parameter_check.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

cuda::KernelSpec SpecOf(const Definition& definition, const Implementation& implementation) {
  cuda::KernelSpec spec;
  spec.source = implementation.file.empty() ? definition.name : implementation.file;
  spec.entry = implementation.entry;
  spec.text = implementation.text;
  if (!spec.text.empty()) spec.text += ParameterCheck(implementation);
  spec.options = implementation.options;
  spec.image = implementation.image;
  return spec;
}

// The description against the machine code, where the driver tells what that takes.
Status CheckParameters(const cuda::Kernel& kernel, const ParameterPlan& parameters) {
  const std::optional<std::vector<size_t>> sizes = kernel.ParameterSizes();
  if (!sizes) return OkStatus();
  if (sizes->size() != parameters.size()) {
    return InvalidArgument("the kernel has ", sizes->size(), " parameters but ", parameters.size(),
                           " are described");
  }
  for (size_t i = 0; i < sizes->size(); ++i) {
    const DType type = parameters.type(i);
    const auto described = static_cast<size_t>(DTypeSize(type));
    if ((*sizes)[i] == described) continue;
    return InvalidArgument("parameter ", i, " of the kernel has ", (*sizes)[i], " bytes but ",
                           described, " are described (", DTypeName(type), "; addresses are u64)");
  }
  return OkStatus();
}

Status Misaligned(const Definition& definition, const Parameter& parameter, uint64_t address) {
  const size_t i = parameter.index;
  const bool is_argument = parameter.kind == Parameter::Kind::kArgument;
  return InvalidArgument(is_argument ? definition.arguments[i].name : definition.results[i].name,
                         " lies at an address that is ", address % parameter.alignment,
                         " bytes past a multiple of ", parameter.alignment,
                         ", for which the machine code was not compiled; give it a copy");
}

std::array<uint32_t, 3> Dimensions(const Attributes& attributes, std::string_view name) {
  std::array<uint32_t, 3> dims = {1, 1, 1};
  if (const auto* ints = std::get_if<std::span<const int64_t>>(attributes.Find(name))) {
    std::ranges::transform(ints->first(3), dims.begin(),
                           [](int64_t n) { return static_cast<uint32_t>(n); });
  }
  return dims;
}

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeLaunchPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  const Implementation& implementation =
      *definition->implementations[static_cast<size_t>(platform)];
  cuda::LaunchConfig config;
  config.grid = Dimensions(*call.attributes, "grid");
  config.block = Dimensions(*call.attributes, "block");
  config.dynamic_shared_bytes = static_cast<uint32_t>(call.attributes->GetInt("shared_memory"));
  config.cluster = implementation.cluster;
  config.cooperative = implementation.cooperative;
  config.programmatic = implementation.programmatic;
  for (size_t i = 0; i < 3; ++i) {
    if (config.grid[i] % config.cluster[i] != 0) {
      return InvalidArgument(definition->name, ": grid is ", StrJoin(config.grid, "x"),
                             ", no multiple of the cluster ", StrJoin(config.cluster, "x"));
    }
  }
  const auto after_name = [&](const Status& status) {
    return status.After(definition->name, ": ");
  };
  auto kernel =
      cuda::GetKernel(SpecOf(*definition, implementation), device, config.dynamic_shared_bytes);
  if (!kernel.ok()) return after_name(kernel.status());
  ParameterPlan parameters(*definition, implementation, call);
  if (Status fits = CheckParameters(**kernel, parameters); !fits.ok()) return after_name(fits);
  return MakePlan([definition, &implementation, kernel = *std::move(kernel),
                   parameters = std::move(parameters),
                   config](const Call& call, const ExecutionContext& context) -> Status {
    std::array<uint64_t, kMaxParameters> values;
    std::array<void*, kMaxParameters> pointers;
    parameters.Fill(call, context.stream, values);
    if (const auto i = parameters.FindMisaligned(values)) {
      return Misaligned(*definition, implementation.parameters[*i], values[*i]);
    }
    for (size_t i = 0; i < parameters.size(); ++i) pointers[i] = &values[i];
    return kernel->Launch(config, std::span(pointers).first(parameters.size()), context.stream);
  });
}

}  // namespace xla_gpu::user_kernel
