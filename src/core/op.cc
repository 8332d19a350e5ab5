#include "src/core/op.h"

#include <algorithm>
#include <cstdint>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

bool TypeFits(AttrType type, const AttrValue& value) {
  switch (type) {
    case AttrType::kBool:
      return std::holds_alternative<bool>(value);
    case AttrType::kInt:
      return std::holds_alternative<int64_t>(value);
    case AttrType::kFloat:
      return std::holds_alternative<double>(value) || std::holds_alternative<int64_t>(value);
    case AttrType::kString:
      return std::holds_alternative<std::string_view>(value);
    case AttrType::kIntArray:
      return std::holds_alternative<std::span<const int64_t>>(value);
  }
  return false;
}

Status CheckAttributes(const Op& op, const Attributes& attributes) {
  for (const Attribute& attribute : attributes.all()) {
    if (attribute.name == kOptionalArgsAttribute) {
      if (!std::holds_alternative<std::string_view>(attribute.value)) {
        return InvalidArgument(StrCat(op.name, ": attribute 'optional_args' is ",
                                      AttrToString(attribute.value), "; it must be a string"));
      }
      continue;
    }
    auto spec = std::ranges::find(op.attrs, attribute.name, &AttrSpec::name);
    if (spec == op.attrs.end()) {
      std::vector<std::string> names;
      for (const AttrSpec& known : op.attrs) names.push_back(known.name);
      return InvalidArgument(StrCat(op.name, ": unknown attribute '", attribute.name,
                                    "'; known are: ", StrJoin(names, ", ")));
    }
    if (!TypeFits(spec->type, attribute.value)) {
      return InvalidArgument(
          StrCat(op.name, ": attribute '", attribute.name, "' is ", AttrTypeName(attribute.value),
                 " ", AttrToString(attribute.value), "; it must be ", AttrTypeName(spec->type)));
    }
  }
  for (const AttrSpec& spec : op.attrs) {
    if (spec.default_text.empty() && attributes.Find(spec.name) == nullptr) {
      return InvalidArgument(StrCat(op.name, ": attribute '", spec.name, "' (",
                                    AttrTypeName(spec.type), ") is missing; it is required"));
    }
  }
  return OkStatus();
}

Status CheckTensor(const Op& op, std::string_view kind, std::string_view name,
                   const TensorView& view) {
  if (DTypeSize(view.dtype) == 0) {
    return InvalidArgument(StrCat(op.name, ": ", kind, " '", name, "' has a dtype (number ",
                                  static_cast<int>(view.dtype), ") that xla_gpu does not know"));
  }
  const std::string_view problem = TypeProblem(view);
  if (problem.empty()) return OkStatus();
  return InvalidArgument(
      StrCat(op.name, ": ", kind, " '", name, "' is ", view.ToString(), "; ", problem));
}

Status CheckTensors(const Op& op, const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(auto bound, BindArguments(op, call));
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] == nullptr) continue;
    XLA_GPU_RETURN_IF_ERROR(CheckTensor(op, "argument", op.args[i].name, *bound[i]));
  }
  return OkStatus();
}

// Whether result `r` may be argument `i`, both as they stand in the call.
bool MayShare(const Op& op, const Call& call, size_t r, size_t i) {
  if (r >= op.results.size() || op.results[r].alias_of.empty()) return true;
  std::string_view present = call.attributes->GetString(kOptionalArgsAttribute, "");
  for (const ArgSpec& spec : op.args) {
    if (spec.optional) {
      if (present.substr(0, present.find(',')) != spec.name) continue;
      present.remove_prefix(std::min(present.size(), spec.name.size() + 1));
    }
    if (i-- == 0) return spec.name == op.results[r].alias_of;
  }
  return false;
}

}  // namespace

std::string_view PlatformName(Platform platform) {
  return platform == Platform::kHost ? "Host" : "CUDA";
}

std::string_view AttrTypeName(AttrType type) {
  switch (type) {
    case AttrType::kBool:
      return "bool";
    case AttrType::kInt:
      return "int";
    case AttrType::kFloat:
      return "float";
    case AttrType::kString:
      return "string";
    case AttrType::kIntArray:
      return "int array";
  }
  return "unknown";
}

StatusOr<std::vector<const TensorView*>> BindArguments(const Op& op, const Call& call) {
  std::string_view present = call.attributes->GetString(kOptionalArgsAttribute, "");
  std::vector<const TensorView*> bound(op.args.size(), nullptr);
  std::vector<std::string_view> expected;
  for (size_t i = 0; i < op.args.size(); ++i) {
    const ArgSpec& spec = op.args[i];
    if (spec.optional) {
      if (present.substr(0, present.find(',')) != spec.name) continue;
      present.remove_prefix(std::min(present.size(), spec.name.size() + 1));
    }
    if (expected.size() < call.args.size()) bound[i] = &call.args[expected.size()];
    expected.push_back(spec.name);
  }
  if (!present.empty()) {
    std::vector<std::string> names;
    for (const ArgSpec& spec : op.args) {
      if (spec.optional) names.push_back(spec.name);
    }
    return InvalidArgument(StrCat(op.name, ": attribute 'optional_args' has '", present,
                                  "' left over; it must name some of '", StrJoin(names, ","),
                                  "' in this order, joined by commas"));
  }
  if (expected.size() != call.args.size()) {
    return InvalidArgument(StrCat(op.name, ": ", call.args.size(), " arguments came but ",
                                  expected.size(), " are expected: ", StrJoin(expected, ", ")));
  }
  return bound;
}

StatusOr<std::vector<TensorSpec>> InferResults(const Op& op, Platform platform, const Call& call) {
  XLA_GPU_RETURN_IF_ERROR(CheckAttributes(op, *call.attributes));
  XLA_GPU_RETURN_IF_ERROR(CheckTensors(op, call));
  std::vector<TensorSpec> results;
  XLA_GPU_RETURN_IF_ERROR(op.infer(call, platform, &results));
  return results;
}

Status CheckCall(const Op& op, Platform platform, const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<TensorSpec> expected, InferResults(op, platform, call));
  if (call.results.size() != expected.size()) {
    std::vector<std::string> types;
    for (const TensorSpec& spec : expected) types.push_back(spec.ToString());
    return InvalidArgument(StrCat(op.name, ": the call has ", call.results.size(),
                                  " results but on ", PlatformName(platform), " it must have ",
                                  expected.size(), ": ", StrJoin(types, ", ")));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].Matches(call.results[i])) {
      return InvalidArgument(StrCat(op.name, ": result ", i, " is ", call.results[i].ToString(),
                                    " but must be ", expected[i].ToString()));
    }
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
    const auto refuse = [&](std::string_view kind, size_t i, const TensorView& other) {
      return InvalidArgument(StrCat(op.name, ": result ", r, " (", result.ToString(), ") overlaps ",
                                    kind, " ", i, " (", other.ToString(),
                                    ") in memory; give it memory of its own",
                                    r < op.results.size() && !op.results[r].alias_of.empty()
                                        ? StrCat(", or that of ", op.results[r].alias_of, ", whole")
                                        : ""));
    };
    for (size_t i = r + 1; i < call.results.size(); ++i) {
      if (overlaps(call.results[i])) return refuse("result", i, call.results[i]);
    }
    bool is_argument = false;
    for (size_t i = 0; i < call.args.size(); ++i) {
      const TensorView& arg = call.args[i];
      if (!overlaps(arg)) continue;
      const bool whole = arg.data == result.data && arg.dtype == result.dtype &&
                         std::ranges::equal(arg.shape, result.shape);
      if (!whole || is_argument || !MayShare(op, call, r, i)) return refuse("argument", i, arg);
      is_argument = true;
    }
  }
  return OkStatus();
}

}  // namespace xla_gpu
