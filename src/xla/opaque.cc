#include "src/xla/opaque.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/core/json_tree.h"
#include "src/core/schema_json.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

// ---- From the tree to the call ------------------------------------------------------------------

Status ReadTensors(const json::Reader& call, std::string_view name, std::vector<TensorSpec>& out) {
  XLA_GPU_ASSIGN_OR_RETURN(auto* items, call.Items(name, "an array of tensor types"));
  for (json::Node& item : *items) {
    XLA_GPU_ASSIGN_OR_RETURN(
        const json::Reader tensor,
        json::Reader::Open(StrCat(name, "[", out.size(), "]"), item, {"dtype", "shape"}, 2));
    TensorSpec spec;
    XLA_GPU_RETURN_IF_ERROR(tensor.Read("dtype", spec.dtype));
    XLA_GPU_RETURN_IF_ERROR(tensor.Read("shape", spec.shape));
    out.push_back(std::move(spec));
  }
  return OkStatus();
}

StatusOr<OpaqueCall::Value> ToValue(json::Node& node) {
  const std::string where = StrCat("attrs.", json::Excerpt(node.name));
  const auto convert = [&](auto& value) -> StatusOr<OpaqueCall::Value> {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, json::Array>) {
      XLA_GPU_ASSIGN_OR_RETURN(std::vector<int64_t> ints, json::Ints(where, node));
      return OpaqueCall::Value(std::move(ints));
    } else if constexpr (std::is_same_v<T, json::Object> || std::is_same_v<T, std::nullptr_t>) {
      return InvalidArgument(
          where, " is ", json::Describe(node),
          "; allowed are true or false, ints, floats, strings and arrays of ints");
    } else {
      return OpaqueCall::Value(std::move(value));
    }
  };
  return std::visit(convert, node.value);
}

// ---- The bounds of a call, whether it comes from a text or becomes one --------------------------

Status CheckTensors(std::string_view list, const std::vector<TensorSpec>& specs) {
  if (specs.size() > kMaxTensors) {
    return InvalidArgument(list, " has ", specs.size(), " tensors; at most ", kMaxTensors,
                           " are allowed");
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const std::string where = StrCat(list, "[", i, "]");
    if (DTypeSize(spec.dtype) == 0) {
      return InvalidArgument(where, ".dtype is number ", static_cast<int>(spec.dtype),
                             ", which is no dtype of xla_gpu");
    }
    if (spec.shape.size() > kMaxRank) {
      return InvalidArgument(where, ".shape has ", spec.shape.size(), " dimensions; at most ",
                             kMaxRank, " are allowed");
    }
    if (const auto problem = TypeProblem({nullptr, spec.dtype, spec.shape}); !problem.empty()) {
      return InvalidArgument(where, " is ", spec.ToString(), "; ", problem);
    }
  }
  return OkStatus();
}

Status CheckAttrs(const OpaqueCall& call) {
  size_t num_ints = 0;
  for (const OpaqueCall::Attr& attr : call.attrs) {
    if (attr.name.empty()) return InvalidArgument("attrs has a member with an empty name");
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr.value)) num_ints += ints->size();
    if (num_ints > kMaxOpaqueInts) {
      return InvalidArgument("attrs.", json::Excerpt(attr.name),
                             " brings the ints of all arrays to ", num_ints, "; at most ",
                             kMaxOpaqueInts, " are allowed");
    }
    if (const auto* number = std::get_if<double>(&attr.value);
        number != nullptr && !std::isfinite(*number)) {
      return InvalidArgument("attrs.", json::Excerpt(attr.name), " is ", *number,
                             "; floats must be finite");
    }
  }
  return ViewAttributes(call).status();
}

Status CheckBounds(const OpaqueCall& call) {
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("args", call.args));
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("results", call.results));
  return CheckAttrs(call);
}

Status CheckTextSize(size_t size) {
  if (size <= kMaxOpaqueBytes) return OkStatus();
  return InvalidArgument("the text has ", size, " bytes; at most ", kMaxOpaqueBytes,
                         " are allowed");
}

StatusOr<std::string> Encode(const OpaqueCall& call) {
  XLA_GPU_RETURN_IF_ERROR(CheckBounds(call));
  XLA_GPU_ASSIGN_OR_RETURN(const Attributes attributes, ViewAttributes(call));
  std::string text;
  try {
    const auto member = [](const Attribute& attr) {
      return StrCat(ValueToJson(attr.name), ':', ValueToJson(attr.value));
    };
    text = StrCat(R"({"op":)", ValueToJson(call.op), R"(,"args":)", TensorSpecsToJson(call.args),
                  R"(,"results":)", TensorSpecsToJson(call.results), R"(,"attrs":{)",
                  StrJoin(attributes.all(), ",", member), "}}");
  } catch (const nlohmann::json::exception&) {  // type_error 316, the only one dump knows
    return InvalidArgument("the op's name, an attribute's name or a string attribute is not UTF-8");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckTextSize(text.size()));
  return text;
}

StatusOr<OpaqueCall> Decode(std::string_view text) {
  XLA_GPU_RETURN_IF_ERROR(CheckTextSize(text.size()));
  if (text.empty()) {
    return InvalidArgument(
        "the text is empty; the call must carry the JSON that xla_gpu_opaque() writes as its "
        "backend_config");
  }
  XLA_GPU_ASSIGN_OR_RETURN(json::Node tree, json::Parse(text));
  XLA_GPU_ASSIGN_OR_RETURN(
      const json::Reader reader,
      json::Reader::Open("the call", tree, {"op", "args", "results", "attrs"}, 3));
  OpaqueCall call;
  XLA_GPU_RETURN_IF_ERROR(reader.Read("op", call.op));
  XLA_GPU_RETURN_IF_ERROR(ReadTensors(reader, "args", call.args));
  XLA_GPU_RETURN_IF_ERROR(ReadTensors(reader, "results", call.results));
  XLA_GPU_ASSIGN_OR_RETURN(auto* attrs, reader.Members("attrs"));
  for (json::Node& attr : *attrs) {
    XLA_GPU_ASSIGN_OR_RETURN(OpaqueCall::Value value, ToValue(attr));
    call.attrs.push_back({std::move(attr.name), std::move(value)});
  }
  XLA_GPU_RETURN_IF_ERROR(CheckBounds(call));
  return call;
}

}  // namespace

OpaqueCall MakeOpaqueCall(std::string_view op, const Call& call) {
  OpaqueCall out;
  out.op = op;
  for (const TensorView& arg : call.args) out.args.push_back(arg.spec());
  for (const TensorView& result : call.results) out.results.push_back(result.spec());
  const auto own = [](const auto& value) -> OpaqueCall::Value {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::string_view>) {
      return std::string(value);
    } else if constexpr (std::is_same_v<T, std::span<const int64_t>>) {
      return std::vector<int64_t>(value.begin(), value.end());
    } else {
      return value;
    }
  };
  for (const Attribute& attr : call.attributes->all()) {
    out.attrs.push_back({std::string(attr.name), std::visit(own, attr.value)});
  }
  return out;
}

StatusOr<Attributes> ViewAttributes(const OpaqueCall& call) {
  Attributes attributes;
  for (const OpaqueCall::Attr& attr : call.attrs) {
    const auto view = [](const auto& value) { return AttrValue(value); };
    XLA_GPU_RETURN_IF_ERROR(attributes.Add(attr.name, std::visit(view, attr.value)));
  }
  return attributes;
}

std::vector<TensorView> ViewTensors(const std::vector<TensorSpec>& specs) {
  std::vector<TensorView> views;
  views.reserve(specs.size());
  for (const TensorSpec& spec : specs) views.push_back({nullptr, spec.dtype, spec.shape});
  return views;
}

StatusOr<std::string> EncodeOpaque(const OpaqueCall& call) {
  StatusOr<std::string> text = Encode(call);
  return text.ok() ? text : text.status().After("opaque: ");
}

StatusOr<OpaqueCall> DecodeOpaque(std::string_view text) {
  StatusOr<OpaqueCall> call = Decode(text);
  return call.ok() ? call : call.status().After("opaque: ");
}

}  // namespace xla_gpu::xla
