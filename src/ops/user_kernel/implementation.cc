#include "src/ops/user_kernel/implementation.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/strings.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

using json::Reader;

// The kinds in the order of Implementation::Kind, with what each may have besides `kind` and
// `parameters`; the first `required` must be there.
struct KindSpec {
  std::string_view name;
  std::vector<std::string_view> members;
  size_t required = 0;
};

const std::vector<KindSpec>& Kinds() {
  static const auto& kinds = *new std::vector<KindSpec>{
      {"cuda_source",
       {"text", "entry", "file", "options", "cluster", "cooperative", "programmatic", "aligned"},
       2},
      {"cuda_image",
       {"image", "entry", "arch", "cluster", "cooperative", "programmatic", "aligned"},
       2},
      {"host_source", {"text", "entry", "file", "options", "returns_error"}, 2},
      {"function", {"library", "symbol", "address", "gate", "returns_error"}},
      {"tvm_ffi", {"library", "symbol", "address", "gate", "libtvm_ffi", "owned"}},
      {"dlpack", {"address", "gate"}, 2},
      {"legacy", {"api_version", "library", "symbol", "address", "gate", "opaque"}, 1},
      {"ffi",
       {"library", "symbol", "address", "instantiate", "prepare", "initialize", "type_id",
        "type_info"}}};
  return kinds;
}

// A member's text before the others are read, since it says which they may be.
StatusOr<std::string> ReadKind(const std::string& where, json::Node& node) {
  const std::string all = StrJoin(Kinds(), ", ", &KindSpec::name);
  auto* object = std::get_if<json::Object>(&node.value);
  if (object == nullptr) {
    return json::MustBe(where, node, StrCat("an object with a kind: ", all));
  }
  const auto found = std::ranges::find(object->items, "kind", &json::Node::name);
  if (found == object->items.end()) {
    return InvalidArgument(where, " lacks the member 'kind', one of ", all);
  }
  XLA_GPU_ASSIGN_OR_RETURN(std::string * kind, json::As<std::string>(StrCat(where, ".kind"), *found,
                                                                     StrCat("one of ", all)));
  if (std::ranges::find(Kinds(), *kind, &KindSpec::name) != Kinds().end()) return *kind;
  return InvalidArgument(where, ".kind is \"", json::Excerpt(*kind), "\"; allowed are ", all);
}

Status ReadMembers(const Reader& reader, Implementation& made) {
  XLA_GPU_RETURN_IF_ERROR(reader.Read("text", made.text));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("file", made.file));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("options", made.options));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("arch", made.arch));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("entry", made.entry));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("library", made.library));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("symbol", made.symbol));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("libtvm_ffi", made.libtvm_ffi));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("owned", made.owned));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("opaque", made.opaque));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("returns_error", made.returns_error));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("cooperative", made.cooperative));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("programmatic", made.programmatic));
  int64_t address = 0, gate = 0, api_version = 0;
  constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
  XLA_GPU_RETURN_IF_ERROR(reader.Read("address", address, 1, kMaxInt));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("api_version", api_version, 1, 3));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("gate", gate, 1, kMaxInt));
  made.address = static_cast<uint64_t>(address);
  const std::pair<std::string_view, uint64_t*> addresses[] = {{"instantiate", &made.stages[0]},
                                                              {"prepare", &made.stages[1]},
                                                              {"initialize", &made.stages[2]},
                                                              {"type_id", &made.type_id},
                                                              {"type_info", &made.type_info}};
  for (const auto& [name, member] : addresses) {
    int64_t given = 0;
    XLA_GPU_RETURN_IF_ERROR(reader.Read(name, given, 1, kMaxInt));
    *member = static_cast<uint64_t>(given);
  }
  made.gate = static_cast<uint64_t>(gate);
  made.api_version = static_cast<int>(api_version);
  std::string image;
  XLA_GPU_RETURN_IF_ERROR(reader.Read("image", image));
  std::optional<std::string> bytes = FromBase64(image);
  if (!bytes) return InvalidArgument(reader.Where("image"), " is not base64");
  made.image = *std::move(bytes);
  std::vector<int64_t> cluster = {1, 1, 1};
  XLA_GPU_RETURN_IF_ERROR(reader.Read("cluster", cluster));
  if (cluster.size() != 3 ||
      std::ranges::any_of(cluster, [](int64_t d) { return d < 1 || d > 16; })) {
    return InvalidArgument(reader.Where("cluster"), " is [", StrJoin(cluster, ","),
                           "]; it must be three ints of 1 to 16");
  }
  std::ranges::copy(cluster, made.cluster.begin());
  return OkStatus();
}

// By a name of the definition; an argument before the result that shares its buffer and name.
StatusOr<Parameter> Named(const Definition& definition, std::string_view where,
                          std::string_view name) {
  using Kind = Parameter::Kind;
  const auto position = [name](const auto& list, auto member) -> std::optional<size_t> {
    const auto found = std::ranges::find(list, name, member);
    if (found == list.end()) return std::nullopt;
    return static_cast<size_t>(found - list.begin());
  };
  if (name == "stream") return Parameter{.kind = Kind::kStream};
  if (name == "workspace" && definition.workspace) return Parameter{.kind = Kind::kWorkspace};
  if (const auto i = position(definition.arguments, &ArgSpec::name)) {
    return Parameter{.kind = Kind::kArgument, .index = *i};
  }
  if (const auto i = position(definition.results, &ResultSpec::name)) {
    return Parameter{.kind = Kind::kResult, .index = *i};
  }
  if (const auto i = position(definition.scalars, &Scalar::name)) {
    return Parameter{.kind = Kind::kScalar, .index = *i, .type = definition.scalars[*i].type};
  }
  return InvalidArgument(where, " is \"", json::Excerpt(name),
                         "\", which is no argument, result or scalar of the definition",
                         name == "workspace" ? " (workspace: true is missing)" : "");
}

StatusOr<Parameter> ToParameter(const Definition& definition, const std::string& where,
                                json::Node& node) {
  using Kind = Parameter::Kind;
  if (std::holds_alternative<std::nullptr_t>(node.value)) return Parameter{};
  if (const auto* name = std::get_if<std::string>(&node.value)) {
    return Named(definition, where, *name);
  }
  if (!std::holds_alternative<json::Object>(node.value)) {
    return json::MustBe(where, node, "a name, null, or an object with a type");
  }
  XLA_GPU_ASSIGN_OR_RETURN(
      const Reader reader,
      Reader::Open(where, node, {"type", "value", "elements_of", "dim_of", "dim"}, 1));
  Parameter made;
  XLA_GPU_RETURN_IF_ERROR(reader.Read("type", made.type));
  XLA_GPU_RETURN_IF_ERROR(CheckNumberType(where, made.type));
  const bool is_dim = reader.Find("dim_of") != nullptr;
  json::Node* const value = reader.Find("value");
  if ((value != nullptr) + (reader.Find("elements_of") != nullptr) + is_dim != 1 ||
      (reader.Find("dim") != nullptr) != is_dim) {
    return InvalidArgument(where, " must have one of value, elements_of, and dim_of with dim");
  }
  if (value != nullptr) {
    made.kind = Kind::kConstant;
    XLA_GPU_ASSIGN_OR_RETURN(const AttrValue number,
                             ReadNumber(reader.Where("value"), *value, made.type));
    made.bits = NumberBits(made.type, number);
    return made;
  }
  made.kind = is_dim ? Kind::kDimension : Kind::kElements;
  const std::string_view member = is_dim ? "dim_of" : "elements_of";
  std::string of;
  int64_t dim = 0;
  XLA_GPU_RETURN_IF_ERROR(reader.Read(member, of));
  XLA_GPU_RETURN_IF_ERROR(reader.Read("dim", dim, 0, kMaxRank - 1));
  made.dim = static_cast<size_t>(dim);
  const auto arg = std::ranges::find(definition.arguments, of, &ArgSpec::name);
  if (arg == definition.arguments.end()) {
    return InvalidArgument(reader.Where(member), " is \"", json::Excerpt(of),
                           "\", which is no argument");
  }
  made.index = static_cast<size_t>(arg - definition.arguments.begin());
  return made;
}

// Arguments, results that are no aliases, scalars; a launcher takes the stream first.
std::vector<Parameter> DefaultParameters(const Definition& definition, Platform platform) {
  using Kind = Parameter::Kind;
  std::vector<Parameter> parameters;
  if (platform == Platform::kCuda &&
      definition.implementations[static_cast<size_t>(platform)]->kind ==
          Implementation::Kind::kFunction) {
    parameters.push_back({.kind = Kind::kStream});
  }
  for (size_t i = 0; i < definition.arguments.size(); ++i) {
    parameters.push_back({.kind = Kind::kArgument, .index = i});
  }
  for (size_t i = 0; i < definition.results.size(); ++i) {
    if (definition.results[i].kind == ResultKind::kAlias) continue;
    parameters.push_back({.kind = Kind::kResult, .index = i});
  }
  for (size_t i = 0; i < definition.scalars.size(); ++i) {
    parameters.push_back({.kind = Kind::kScalar, .index = i, .type = definition.scalars[i].type});
  }
  return parameters;
}

// That a source's function has a parameter for each output and scalar.
Status CheckTaken(const Definition& definition, const std::string& entry,
                  const std::vector<Parameter>& parameters) {
  const auto takes = [&parameters](Parameter::Kind kind, size_t index) {
    return std::ranges::any_of(parameters, [=](const Parameter& parameter) {
      return parameter.kind == kind && parameter.index == index;
    });
  };
  const auto refuse = [&entry](std::string_view what, std::string_view name) {
    return InvalidArgument(what, " ", name, " is no parameter of ", entry);
  };
  for (size_t i = 0; i < definition.results.size(); ++i) {
    const ResultSpec& result = definition.results[i];
    if (result.kind == ResultKind::kAlias || takes(Parameter::Kind::kResult, i)) continue;
    return refuse("output", result.name);
  }
  for (size_t i = 0; i < definition.scalars.size(); ++i) {
    if (!takes(Parameter::Kind::kScalar, i)) return refuse("scalar", definition.scalars[i].name);
  }
  return OkStatus();
}

Status MarkAligned(const Definition& definition, Platform platform,
                   const std::vector<std::string>& names, std::vector<Parameter>& parameters) {
  using Kind = Parameter::Kind;
  const std::string where = StrCat("implementations.", PlatformName(platform), ".aligned");
  for (const std::string& name : names) {
    XLA_GPU_ASSIGN_OR_RETURN(const Parameter named, Named(definition, where, name));
    const bool is_address = named.kind == Kind::kArgument || named.kind == Kind::kResult;
    bool found = false;
    for (Parameter& parameter : parameters) {
      if (!is_address || parameter.kind != named.kind || parameter.index != named.index) continue;
      found = true;
      parameter.alignment = kAlignment;
    }
    if (!found) {
      return InvalidArgument(where, " has \"", json::Excerpt(name),
                             "\", which is no address that a launched kernel takes");
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<ParsedImplementation> ReadImplementation(Platform platform, json::Node& node) {
  const std::string where = StrCat("implementations.", PlatformName(platform));
  XLA_GPU_ASSIGN_OR_RETURN(const std::string kind, ReadKind(where, node));
  const auto spec = std::ranges::find(Kinds(), kind, &KindSpec::name);
  ParsedImplementation parsed;
  Implementation& made = parsed.made;
  made.kind = static_cast<Implementation::Kind>(spec - Kinds().begin());
  const bool on_host_only = made.kind == Implementation::Kind::kHostSource;
  if (platform == Platform::kCuda ? on_host_only : made.is_launched()) {
    return InvalidArgument(where, ".kind is \"", kind, "\", which does not run on ",
                           PlatformName(platform));
  }
  std::vector<std::string_view> members = spec->members;
  members.insert(members.end(), {"kind", "parameters"});
  XLA_GPU_ASSIGN_OR_RETURN(const Reader reader,
                           Reader::Open(where, node, std::move(members), spec->required));
  // Find looks among the kind's own members; of others there is nothing to read.
  XLA_GPU_RETURN_IF_ERROR(ReadMembers(reader, made));
  const auto needs = [&](std::string_view member, const std::string& text) -> Status {
    if (!text.empty() || std::ranges::count(spec->members, member) == 0) return OkStatus();
    return InvalidArgument(where, ".", member, " is empty or missing; a ", kind, " needs it");
  };
  XLA_GPU_RETURN_IF_ERROR(needs("text", made.text));
  XLA_GPU_RETURN_IF_ERROR(needs("image", made.image));
  XLA_GPU_RETURN_IF_ERROR(needs("entry", made.entry));
  if (made.address == 0) {
    XLA_GPU_RETURN_IF_ERROR(needs("library", made.library));
    XLA_GPU_RETURN_IF_ERROR(needs("symbol", made.symbol));
  }
  parsed.parameters = reader.Find("parameters");
  XLA_GPU_RETURN_IF_ERROR(reader.Read("aligned", parsed.aligned));
  return parsed;
}

StatusOr<std::vector<Parameter>> ReadParameters(const Definition& definition, Platform platform,
                                                const ParsedImplementation& parsed,
                                                const std::vector<DeclaredParameter>& declared) {
  const Implementation& made = *definition.implementations[static_cast<size_t>(platform)];
  const std::string where = StrCat("implementations.", PlatformName(platform), ".parameters");
  std::vector<Parameter> parameters;
  if (parsed.parameters != nullptr) {
    XLA_GPU_ASSIGN_OR_RETURN(json::Array * list,
                             json::As<json::Array>(where, *parsed.parameters, "an array"));
    for (json::Node& item : list->items) {
      XLA_GPU_ASSIGN_OR_RETURN(
          Parameter parameter,
          ToParameter(definition, StrCat(where, "[", parameters.size(), "]"), item));
      parameters.push_back(parameter);
    }
  } else if (made.is_source()) {
    for (const DeclaredParameter& one : declared) {
      XLA_GPU_ASSIGN_OR_RETURN(Parameter parameter, Named(definition, "a parameter", one.name));
      parameter.declared = one.is_pointer || one.type != DType::kInvalid;
      if (one.is_pointer) parameter.points_to = one.type;
      if (made.is_launched()) parameter.alignment = one.alignment;
      if (!one.type_parameter.empty()) {
        const auto first =
            std::ranges::find(declared, one.type_parameter, &DeclaredParameter::type_parameter);
        parameter.points_as = static_cast<size_t>(first - declared.begin());
      }
      parameters.push_back(parameter);
    }
  } else {
    parameters = DefaultParameters(definition, platform);
  }
  if (parameters.size() > kMaxParameters) {
    return InvalidArgument(where, " are ", parameters.size(), "; at most ", kMaxParameters,
                           " are allowed");
  }
  if (made.is_source()) XLA_GPU_RETURN_IF_ERROR(CheckTaken(definition, made.entry, parameters));
  XLA_GPU_RETURN_IF_ERROR(MarkAligned(definition, platform, parsed.aligned, parameters));
  return parameters;
}

Status CheckNumberType(std::string_view where, DType type) {
  if (DTypeSize(type) != 0 && !IsFloat8(type)) return OkStatus();
  return InvalidArgument("the type of ", where, " is ",
                         type == DType::kInvalid ? "not known" : DTypeName(type),
                         "; give it pred, an integer's, or a float's of 16 to 64 bits");
}

StatusOr<AttrValue> ReadNumber(std::string_view where, const json::Node& node, DType type) {
  if (type == DType::kPred) {
    if (const bool* flag = std::get_if<bool>(&node.value)) return AttrValue(*flag);
  } else if (const auto* number = std::get_if<int64_t>(&node.value)) {
    const auto real = static_cast<double>(*number);
    if (IsFloat(type) && Fits(type, real)) return AttrValue(real);
    if (!IsFloat(type) && Fits(type, *number)) return AttrValue(*number);
  } else if (const auto* real = std::get_if<double>(&node.value);
             real != nullptr && IsFloat(type) && Fits(type, *real)) {
    return AttrValue(*real);
  }
  return json::MustBe(
      where, node,
      type == DType::kPred ? "a pred" : StrCat("a ", DTypeName(type), ": ", RangeOf(type)));
}

}  // namespace xla_gpu::user_kernel
