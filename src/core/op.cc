#include "src/core/op.h"

#include <algorithm>
#include <cstdint>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

bool TypeFits(AttrType type, const AttrValue& value) {
  const AttrType came = TypeOf(value);
  return came == type || (came == AttrType::kInt && type == AttrType::kFloat) ||
         (came == AttrType::kString && type == AttrType::kDType);
}

// Visits the schema positions of the arguments that a call with these attributes brings, in order;
// returns what its `optional_args` names besides.
template <typename Visit>
std::string_view VisitPresent(const Op& op, const Attributes& attributes, Visit visit) {
  std::string_view present = attributes.GetString(kOptionalArgsAttribute, "");
  for (size_t i = 0; i < op.args.size(); ++i) {
    const ArgSpec& spec = op.args[i];
    if (spec.optional) {
      if (present.substr(0, present.find(',')) != spec.name) continue;
      present.remove_prefix(std::min(present.size(), spec.name.size() + 1));
    }
    visit(i);
  }
  return present;
}

bool IsDTypeOf(const AttrSpec& spec, const AttrValue& value) {
  const auto name = std::get<std::string_view>(value);
  if (name.empty()) return spec.default_value.has_value();
  const auto dtype = DTypeFromName(name);
  return dtype.has_value() && std::ranges::count(spec.dtypes, *dtype) > 0;
}

Status CheckAttributes(const Op& op, const Attributes& attributes) {
  for (const Attribute& attribute : attributes.all()) {
    if (attribute.name == kOptionalArgsAttribute) {
      if (!std::holds_alternative<std::string_view>(attribute.value)) {
        return InvalidArgument(op.name, ": attribute 'optional_args' is ",
                               AttrToString(attribute.value), "; it must be a string");
      }
      continue;
    }
    auto spec = std::ranges::find(op.attrs, attribute.name, &AttrSpec::name);
    if (spec == op.attrs.end()) {
      return InvalidArgument(op.name, ": unknown attribute '", attribute.name,
                             "'; known are: ", StrJoin(op.attrs, ", ", &AttrSpec::name));
    }
    if (!TypeFits(spec->type, attribute.value)) {
      return InvalidArgument(
          op.name, ": attribute '", attribute.name, "' is ", AttrTypeName(TypeOf(attribute.value)),
          " ", AttrToString(attribute.value), "; it must be ", AttrTypeName(spec->type));
    }
    if (spec->type == AttrType::kDType && !IsDTypeOf(*spec, attribute.value)) {
      return InvalidArgument(op.name, ": attribute '", spec->name, "' is ",
                             AttrToString(attribute.value), "; it must be ",
                             DTypesText(spec->dtypes),
                             spec->default_value.has_value() ? StrCat(", or ", spec->doc) : "");
    }
  }
  for (const AttrSpec& spec : op.attrs) {
    const bool required = !spec.default_value.has_value() && !spec.none_is_default;
    if (required && attributes.Find(spec.name) == nullptr) {
      return InvalidArgument(op.name, ": attribute '", spec.name, "' (", AttrTypeName(spec.type),
                             ") is missing; it is required");
    }
  }
  return OkStatus();
}

Status CheckTensor(const Op& op, std::string_view kind, std::string_view name,
                   const TensorView& view) {
  if (DTypeSize(view.dtype) == 0) {
    return InvalidArgument(op.name, ": ", kind, " '", name, "' has a dtype (number ",
                           static_cast<int>(view.dtype), ") that xla_gpu does not know");
  }
  const std::string_view problem = TypeProblem(view);
  if (problem.empty()) return OkStatus();
  return InvalidArgument(op.name, ": ", kind, " '", name, "' is ", view.ToString(), "; ", problem);
}

Status CheckArguments(const Op& op, const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(auto bound, BindArguments(op, call));
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] == nullptr) continue;
    const ArgSpec& spec = op.args[i];
    XLA_GPU_RETURN_IF_ERROR(CheckTensor(op, "argument", spec.name, *bound[i]));
    if (!spec.dtypes.empty() && std::ranges::count(spec.dtypes, bound[i]->dtype) == 0) {
      return InvalidArgument(op.name, ": ", spec.name, " is ", bound[i]->ToString(),
                             "; its dtype must be ", DTypesText(spec.dtypes));
    }
  }
  return OkStatus();
}

// The index in the call's arguments of the one of this name, or -1 if the call does not bring it.
int IndexOf(const Op& op, const Attributes& attributes, std::string_view name) {
  int index = -1, next = 0;
  VisitPresent(op, attributes, [&](size_t i) {
    if (op.args[i].name == name) index = next;
    ++next;
  });
  return index;
}

// The schema of result `r` of a call; null where it has fewer.
const ResultSpec* SpecOfResult(const Op& op, const Attributes& attributes, size_t r) {
  for (const ResultSpec& spec : op.results) {
    if (HasResult(op, attributes, spec) && r-- == 0) return &spec;
  }
  return nullptr;
}

// "result kv_cache" and "argument key", of those of a call.
std::string ResultName(const Op& op, const Call& call, size_t r) {
  const ResultSpec* spec = SpecOfResult(op, *call.attributes, r);
  return StrCat("result ", spec == nullptr ? std::to_string(r) : spec->name);
}

std::string ArgumentName(const Op& op, const Call& call, size_t index) {
  std::string name = "argument ";
  VisitPresent(op, *call.attributes, [&](size_t i) {
    if (index-- == 0) name += op.args[i].name;
  });
  return name;
}

// Whether result `r` of the call may be its argument `i`.
bool MayShare(const Op& op, const Call& call, size_t r, size_t i) {
  const ResultSpec* result = SpecOfResult(op, *call.attributes, r);
  return result == nullptr || result->alias_of.empty() ||
         IndexOf(op, *call.attributes, result->alias_of) == static_cast<int>(i);
}

}  // namespace

std::string_view PlatformName(Platform platform) {
  return platform == Platform::kHost ? "Host" : "CUDA";
}

std::string_view ResultKindName(ResultKind kind) {
  constexpr std::string_view kNames[] = {"output", "alias", "scratch"};
  return kNames[static_cast<size_t>(kind)];
}

std::string DTypesText(const DTypes& dtypes) {
  std::string text;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    text += i == 0 ? "" : i + 1 < dtypes.size() ? ", " : " or ";
    text += DTypeName(dtypes[i]);
  }
  return text;
}

ResultSpec Workspace() {
  return {.name = "workspace",
          .doc = "u8 [n], on CUDA only: scratch, its content means nothing",
          .kind = ResultKind::kScratch};
}

StatusOr<std::vector<const TensorView*>> BindArguments(const Op& op, const Call& call) {
  std::vector<const TensorView*> bound(op.args.size(), nullptr);
  std::vector<std::string_view> expected;
  const std::string_view present = VisitPresent(op, *call.attributes, [&](size_t i) {
    if (expected.size() < call.args.size()) bound[i] = &call.args[expected.size()];
    expected.push_back(op.args[i].name);
  });
  if (!present.empty()) {
    std::vector<std::string_view> optional;
    for (const ArgSpec& arg : op.args) {
      if (arg.optional) optional.push_back(arg.name);
    }
    return InvalidArgument(op.name, ": attribute 'optional_args' has '", present,
                           "' left over; it must name some of '", StrJoin(optional, ","),
                           "' in this order, joined by commas");
  }
  if (expected.size() != call.args.size()) {
    return InvalidArgument(op.name, ": ", call.args.size(), " arguments came but ", expected.size(),
                           " are expected: ", StrJoin(expected, ", "));
  }
  return bound;
}

Attributes CompleteAttributes(const Op& op, const Attributes& attributes) {
  Attributes complete = attributes;
  for (const AttrSpec& spec : op.attrs) {
    if (!spec.default_value.has_value() || complete.Find(spec.name) != nullptr) continue;
    // There is room: the registry takes no op with more attributes than a call may have.
    (void)complete.Add(spec.name, *spec.default_value);
  }
  return complete;
}

bool HasResult(const Op& op, const Attributes& attributes, const ResultSpec& spec) {
  return spec.only_with.empty() || attributes.GetBool(spec.only_with, false) ||
         IndexOf(op, attributes, spec.only_with) >= 0;
}

int AliasOf(const Op& op, const Attributes& attributes, const ResultSpec& spec) {
  return spec.alias_of.empty() ? -1 : IndexOf(op, attributes, spec.alias_of);
}

StatusOr<std::vector<Result>> InferResults(const Op& op, Platform platform, const Call& call) {
  XLA_GPU_RETURN_IF_ERROR(CheckAttributes(op, *call.attributes));
  XLA_GPU_RETURN_IF_ERROR(CheckArguments(op, call));
  const Attributes attributes = CompleteAttributes(op, *call.attributes);
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<TensorSpec> types,
                           op.infer({call.args, call.results, &attributes}, platform));
  std::vector<Result> results;
  for (const ResultSpec& spec : op.results) {
    if (!HasResult(op, attributes, spec)) continue;
    if (results.size() == types.size() && spec.kind == ResultKind::kScratch) continue;
    if (results.size() == types.size()) return Internal(op.name, ": infer: no ", spec.name);
    results.push_back({&spec, std::move(types[results.size()]), AliasOf(op, attributes, spec)});
  }
  if (results.size() < types.size()) return Internal(op.name, ": infer: too many results");
  return results;
}

StatusOr<std::vector<TensorSpec>> InferTypes(const Op& op, Platform platform, const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<Result> results, InferResults(op, platform, call));
  std::vector<TensorSpec> types;
  for (Result& result : results) types.push_back(std::move(result.type));
  return types;
}

Status CheckCall(const Op& op, Platform platform, const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<Result> expected, InferResults(op, platform, call));
  if (call.results.size() != expected.size()) {
    return InvalidArgument(
        op.name, ": the call has ", call.results.size(), " results but on ", PlatformName(platform),
        " it must have ", expected.size(), ": ",
        StrJoin(expected, ", ", [](const Result& result) { return result.type.ToString(); }));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorSpec& type = expected[i].type;
    const TensorView& came = call.results[i];
    const bool scratch = expected[i].spec->kind == ResultKind::kScratch;
    if (type.Matches(came)) continue;
    if (scratch && came.dtype == type.dtype && came.rank() == 1 && came.dim(0) >= type.shape[0]) {
      continue;
    }
    return InvalidArgument(op.name, ": result ", i, " is ", came.ToString(), " but must be ",
                           type.ToString(), scratch ? ", or larger" : "");
  }
  return OkStatus();
}

Status CheckOverlap(const Op& op, const Call& call) {
  for (size_t r = 0; r < call.results.size(); ++r) {
    const TensorView& result = call.results[r];
    const auto begin = reinterpret_cast<uintptr_t>(result.data);
    const auto size = static_cast<uintptr_t>(result.size_bytes());
    // As numbers, since comparing pointers into different arrays is undefined, and without sums,
    // which could overflow.
    const auto overlaps = [begin, size](const TensorView& other) {
      const auto at = reinterpret_cast<uintptr_t>(other.data);
      if (at >= begin) return at - begin < size && other.size_bytes() != 0;
      return size != 0 && begin - at < static_cast<uintptr_t>(other.size_bytes());
    };
    const auto refuse = [&](std::string_view other_name, const TensorView& other) {
      const ResultSpec* spec = SpecOfResult(op, *call.attributes, r);
      return InvalidArgument(op.name, ": ", ResultName(op, call, r), " ", result.ToString(),
                             " overlaps ", other_name, " ", other.ToString(),
                             " in memory; give it memory of its own",
                             spec != nullptr && !spec->alias_of.empty()
                                 ? StrCat(", or that of ", spec->alias_of, ", whole")
                                 : "");
    };
    for (size_t i = r + 1; i < call.results.size(); ++i) {
      const TensorView& other = call.results[i];
      if (overlaps(other)) return refuse(ResultName(op, call, i), other);
    }
    bool is_argument = false;
    for (size_t i = 0; i < call.args.size(); ++i) {
      const TensorView& arg = call.args[i];
      if (!overlaps(arg)) continue;
      const bool whole = arg.data == result.data && arg.SameType(result);
      if (!whole || is_argument || !MayShare(op, call, r, i)) {
        return refuse(ArgumentName(op, call, i), arg);
      }
      is_argument = true;
    }
  }
  return OkStatus();
}

}  // namespace xla_gpu
