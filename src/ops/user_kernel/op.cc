// The op that a definition becomes.
#include <algorithm>
#include <utility>

#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/cuda/driver_api.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/gate.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

using DefinitionPtr = std::shared_ptr<const Definition>;

// The types in `result_types`, each a dtype's number, a rank and dimensions.
StatusOr<std::vector<TensorSpec>> ReadTypes(const Definition& definition,
                                            std::span<const int64_t> ints) {
  const auto bad = [&] {
    return InvalidArgument(definition.name, ": result_types is ", AttrToString(AttrValue(ints)),
                           "; it must have a dtype's number, the rank and the dimensions of each "
                           "result that is not like an argument");
  };
  std::vector<TensorSpec> types;
  while (!ints.empty()) {
    if (ints.size() < 2 || !std::in_range<int32_t>(ints[0])) return bad();
    const DType dtype = DTypeFromInt(static_cast<int32_t>(ints[0]));
    if (dtype == DType::kInvalid || ints[1] < 0 ||
        ints[1] > static_cast<int64_t>(ints.size()) - 2) {
      return bad();
    }
    const auto dims = ints.subspan(2, static_cast<size_t>(ints[1]));
    types.push_back({dtype, {dims.begin(), dims.end()}});
    const TensorSpec& type = types.back();
    if (const auto problem = TypeProblem({nullptr, type.dtype, type.shape}); !problem.empty()) {
      return InvalidArgument(definition.name, ": a result is ", type.ToString(), "; ", problem);
    }
    ints = ints.subspan(2 + dims.size());
  }
  return types;
}

std::span<const int64_t> GetInts(const Attributes& attributes, std::string_view name) {
  const auto* held = std::get_if<std::span<const int64_t>>(attributes.Find(name));
  return held == nullptr ? std::span<const int64_t>() : *held;
}

Status CheckLaunch(const Definition& definition, const Attributes& attributes) {
  constexpr int64_t kMaxGrid[] = {2147483647, 65535, 65535};
  constexpr int64_t kMaxBlock[] = {1024, 1024, 64};
  const auto check = [&](std::string_view name, const int64_t(&most)[3], int64_t least) -> Status {
    const auto dims = GetInts(attributes, name);
    bool good = dims.size() == 3;
    for (size_t i = 0; good && i < 3; ++i) good = dims[i] >= least && dims[i] <= most[i];
    if (good) return OkStatus();
    return InvalidArgument(definition.name, ": ", name, " is ", AttrToString(AttrValue(dims)),
                           "; it must be three ints from ", least, " to ", most[0], ", ", most[1],
                           " and ", most[2]);
  };
  XLA_GPU_RETURN_IF_ERROR(check("grid", kMaxGrid, 0));
  XLA_GPU_RETURN_IF_ERROR(check("block", kMaxBlock, 1));
  const auto block = GetInts(attributes, "block");
  if (block[0] * block[1] * block[2] > 1024) {
    return InvalidArgument(definition.name, ": block is ", AttrToString(AttrValue(block)),
                           "; a block has at most 1024 threads");
  }
  const int64_t shared = attributes.GetInt("shared_memory");
  if (shared >= 0 && shared <= int64_t{1} << 20) return OkStatus();
  return InvalidArgument(definition.name, ": shared_memory is ", shared,
                         "; it must be 0 to 1048576 bytes");
}

// A grid without blocks writes nothing, which is right where there is nothing to write but what the
// call already has: arguments in place.
Status CheckBlocks(const Definition& definition, std::span<const int64_t> grid,
                   std::span<const TensorSpec> results) {
  if (std::ranges::count(grid, 0) == 0) return OkStatus();
  for (size_t i = 0; i < definition.results.size(); ++i) {
    const bool is_empty = std::ranges::count(results[i].shape, 0) > 0;
    if (is_empty || definition.results[i].kind == ResultKind::kAlias) continue;
    return InvalidArgument(definition.name, ": grid is ", AttrToString(AttrValue(grid)),
                           ", so no block would write result ", definition.results[i].name, ", ",
                           results[i].ToString(), "; each of its ints must be at least 1");
  }
  return OkStatus();
}

// The type of a result that the definition tells; nothing where the call does.
std::optional<TensorSpec> TypeLikeArgument(const Definition& definition, const ResultSpec& result,
                                           const Op& op, const Call& call) {
  const std::string& name = result.alias_of.empty() ? result.like : result.alias_of;
  if (name.empty()) return std::nullopt;
  const auto bound = BindArguments(op, call);
  const auto arg = std::ranges::find(definition.arguments, name, &ArgSpec::name);
  const TensorView* like = (*bound)[static_cast<size_t>(arg - definition.arguments.begin())];
  if (like == nullptr) return std::nullopt;
  TensorSpec type = like->spec();
  if (!result.dtype.empty()) type.dtype = *DTypeFromName(result.dtype);
  return type;
}

StatusOr<std::vector<TensorSpec>> Infer(const Definition& definition, const Op& op,
                                        const Call& call, Platform platform) {
  const Attributes& attributes = *call.attributes;
  XLA_GPU_RETURN_IF_ERROR(CheckScalars(definition, attributes));
  const auto& implementation = definition.implementations[static_cast<size_t>(platform)];
  // Of a call on the CPU too, where the same call would be refused on a GPU.
  if ((implementation && implementation->is_launched()) || attributes.Find("grid") != nullptr) {
    XLA_GPU_RETURN_IF_ERROR(CheckLaunch(definition, attributes));
  }
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<TensorSpec> said,
                           ReadTypes(definition, GetInts(attributes, "result_types")));
  std::vector<TensorSpec> types;
  size_t next = 0;
  for (const ResultSpec& result : definition.results) {
    if (std::optional<TensorSpec> type = TypeLikeArgument(definition, result, op, call)) {
      types.push_back(*std::move(type));
    } else if (next < said.size()) {
      types.push_back(std::move(said[next++]));
    } else {
      return InvalidArgument(definition.name, ": result_types has ", said.size(),
                             " types, none for result ", result.name);
    }
  }
  if (next != said.size()) {
    return InvalidArgument(definition.name, ": result_types has ", said.size(), " types for ", next,
                           " results that are not like an argument");
  }
  if (implementation) {
    XLA_GPU_ASSIGN_OR_RETURN(const auto bound, BindArguments(op, call));
    XLA_GPU_RETURN_IF_ERROR(CheckParameters(definition, *implementation, bound, types));
  }
  if (attributes.Find("grid") != nullptr) {
    XLA_GPU_RETURN_IF_ERROR(CheckBlocks(definition, GetInts(attributes, "grid"), types));
  }
  const int64_t workspace = attributes.GetInt("workspace_bytes");
  if (workspace < 0) {
    return InvalidArgument(definition.name, ": workspace_bytes is ", workspace,
                           "; it must not be negative");
  }
  if (workspace > 0) types.push_back({DType::kU8, {workspace}});
  return types;
}

// An alias shares its argument's buffer: the function has one address for both.
Status CheckAliases(const Definition& definition, const Op& op, const Call& call) {
  for (size_t i = 0; i < definition.results.size(); ++i) {
    const ResultSpec& result = definition.results[i];
    if (result.kind != ResultKind::kAlias) continue;
    const auto bound = BindArguments(op, call);
    const auto arg = std::ranges::find(definition.arguments, result.alias_of, &ArgSpec::name);
    const TensorView* shared = (*bound)[static_cast<size_t>(arg - definition.arguments.begin())];
    if (shared != nullptr && shared->data == call.results[i].data) continue;
    return InvalidArgument(definition.name, ": result ", result.name,
                           " must lie in the memory of argument ", result.alias_of,
                           ", which the kernel updates in place");
  }
  return OkStatus();
}

ImplementationPlan* PlanOf(const Implementation& implementation) {
  switch (implementation.kind) {
    case Implementation::Kind::kCudaSource:
    case Implementation::Kind::kCudaImage:
      return MakeLaunchPlan;
    case Implementation::Kind::kHostSource:
    case Implementation::Kind::kFunction:
      return MakeFunctionPlan;
    case Implementation::Kind::kTvmFfi:
      return MakeTvmFfiPlan;
    case Implementation::Kind::kDlpack:
      return MakeDlpackPlan;
    case Implementation::Kind::kLegacy:
      return MakeLegacyPlan;
    case Implementation::Kind::kFfi:
      return MakeFfiPlan;
  }
  return nullptr;
}

AttrType AttrTypeOf(DType type) {
  return type == DType::kPred ? AttrType::kBool : IsFloat(type) ? AttrType::kFloat : AttrType::kInt;
}

std::vector<AttrSpec> AttrsOf(const Definition& definition) {
  std::vector<AttrSpec> attrs;
  for (const Scalar& scalar : definition.scalars) {
    attrs.push_back({.name = scalar.name,
                     .type = AttrTypeOf(scalar.type),
                     .doc = scalar.doc.empty() ? std::string(DTypeName(scalar.type)) : scalar.doc,
                     .default_value = scalar.default_value,
                     .keyword_only = true,
                     .derived = scalar.derived});
  }
  const auto derived = [&attrs](std::string_view name, AttrType type, std::string doc,
                                bool required) {
    attrs.push_back({.name = std::string(name),
                     .type = type,
                     .doc = std::move(doc),
                     .none_is_default = !required,
                     .keyword_only = true,
                     .derived = true});
  };
  derived(kKernelAttribute, AttrType::kString, "the kernel's key", false);
  derived(kDefinitionAttribute, AttrType::kString, "the kernel, in exported programs", false);
  derived("result_types", AttrType::kIntArray, "dtype, rank and dimensions of results", false);
  const auto& cuda = definition.implementations[static_cast<size_t>(Platform::kCuda)];
  if (cuda && cuda->is_launched()) {
    derived("grid", AttrType::kIntArray, "blocks in x, y and z", false);
    derived("block", AttrType::kIntArray, "threads in x, y and z", false);
    derived("shared_memory", AttrType::kInt, "bytes of dynamic shared memory", false);
  }
  if (definition.workspace) {
    derived("workspace_bytes", AttrType::kInt, "bytes of scratch memory", false);
  }
  return attrs;
}

StatusOr<Op> Define(std::string_view text) {
  XLA_GPU_ASSIGN_OR_RETURN(DefinitionPtr definition, ParseDefinition(text));
  return MakeOp(std::move(definition));
}

[[maybe_unused]] const bool installed = [] {
  OpRegistry::Global().SetDefiner(Define);
  return true;
}();

}  // namespace

Op MakeOp(DefinitionPtr definition) {
  Op op;
  op.name = op.target = definition->name;
  op.key = definition->key;
  op.doc = definition->doc;
  op.args = definition->arguments;
  op.results = definition->results;
  if (definition->workspace) op.results.push_back(Workspace());
  op.attrs = AttrsOf(*definition);
  op.capturable = definition->capture;
  op.instead_of_gradient = "give the kernel a gradient";
  op.instead_of_batching = "give the kernel a vmap rule";
  // The schema alone, for the functions of the op that it is the schema of.
  const auto schema = std::make_shared<const Op>(op);
  op.infer = [definition, schema](const Call& call, Platform platform) {
    return Infer(*definition, *schema, call, platform);
  };
  for (const Platform platform : {Platform::kHost, Platform::kCuda}) {
    const auto& implementation = definition->implementations[static_cast<size_t>(platform)];
    if (!implementation) continue;
    op.make_plan[static_cast<size_t>(platform)] =
        [definition, schema, platform, make = PlanOf(*implementation),
         has_aliases = std::ranges::any_of(definition->results, [](const ResultSpec& result) {
           return result.kind == ResultKind::kAlias;
         })](const Call& call, int device) -> StatusOr<std::unique_ptr<Plan>> {
      XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                               make(definition, platform, call, device));
      const Implementation& implementation =
          *definition->implementations[static_cast<size_t>(platform)];
      const bool launches_itself = platform == Platform::kCuda && !implementation.is_launched();
      auto* const gate = reinterpret_cast<Gate*>(implementation.gate);
      return MakePlan([definition, schema, plan, has_aliases, launches_itself, gate](
                          const Call& call, const ExecutionContext& context) {
        if (has_aliases) XLA_GPU_RETURN_IF_ERROR(CheckAliases(*definition, *schema, call));
        const Passage passage(gate);
        if (!passage.is_open()) {
          return FailedPrecondition(definition->name, ": the function's interpreter has ended");
        }
        Status status = plan->Run(call, context);
        if (status.ok() && launches_itself) {
          status = cuda::AfterLaunch(context.stream, "running what the function launched");
        }
        return status.ok() ? status : status.After(definition->name, ": ");
      });
    };
  }
  return op;
}

}  // namespace xla_gpu::user_kernel
