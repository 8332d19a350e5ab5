#include "src/ops/user_kernel/definition.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/json_tree.h"
#include "src/core/strings.h"
#include "src/cuda/sha256.h"
#include "src/ops/user_kernel/parameters.h"
#include "src/ops/user_kernel/reader.h"
#include "src/ops/user_kernel/signature.h"

namespace xla_gpu::user_kernel {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;  // of a definition: an image of 190 MB
constexpr size_t kMaxName = 200;

// What calls carry besides the user's own names.
constexpr std::string_view kReserved[] = {
    kKernelAttribute, kDefinitionAttribute, kOptionalArgsAttribute, "grid",      "block",
    "shared_memory",  "workspace_bytes",    "result_types",         "workspace", "stream"};

constexpr std::string_view kKinds[] = {"cuda_source", "cuda_image", "host_source",
                                       "function",    "tvm_ffi",    "legacy"};

Status CheckName(std::string_view where, std::string_view name) {
  const bool is_identifier =
      !name.empty() && name.size() <= kMaxName &&
      std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
      std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!is_identifier) {
    return InvalidArgument(where, " is \"", json::Excerpt(name), "\"; it must be an identifier");
  }
  if (std::ranges::find(kReserved, name) != std::end(kReserved)) {
    return InvalidArgument(where, " is \"", name,
                           "\", which calls use for something else: ", StrJoin(kReserved, ", "),
                           " are taken");
  }
  return OkStatus();
}

StatusOr<std::string> FromBase64(std::string_view where, std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int bits = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) return InvalidArgument(where, " is not base64");
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(group >> bits));
  }
  return bytes;
}

// Builds a Definition; its members are the steps, in order.
class Parser {
 public:
  StatusOr<std::shared_ptr<const Definition>> Parse(std::string_view text) {
    if (text.size() > kMaxBytes) {
      return InvalidArgument("the definition has ", text.size(), " bytes; at most ", kMaxBytes,
                             " are allowed");
    }
    XLA_GPU_ASSIGN_OR_RETURN(json::Node tree, json::Parse(text));
    XLA_GPU_ASSIGN_OR_RETURN(const Reader top,
                             Reader::Open("the definition", tree,
                                          {"name", "implementations", "doc", "arguments", "results",
                                           "scalars", "capture", "workspace"},
                                          2));
    XLA_GPU_RETURN_IF_ERROR(ReadHead(top));
    XLA_GPU_RETURN_IF_ERROR(ReadResults(top));
    XLA_GPU_RETURN_IF_ERROR(ReadArguments(top));
    XLA_GPU_RETURN_IF_ERROR(ReadScalars(top));
    XLA_GPU_ASSIGN_OR_RETURN(
        const Reader platforms,
        Reader::Open("implementations", *top.Find("implementations"), {"CUDA", "Host"}, 0));
    for (const Platform platform : {Platform::kCuda, Platform::kHost}) {
      const std::string_view name = PlatformName(platform);
      if (json::Node* node = platforms.Find(name)) {
        XLA_GPU_RETURN_IF_ERROR(
            ReadImplementation(StrCat("implementations.", name), platform, *node));
      }
    }
    XLA_GPU_RETURN_IF_ERROR(CheckNames());
    cuda::Sha256 hash;
    hash.Update(text);
    made_->key = StrCat(made_->name, "@", cuda::Sha256::Hex(hash.Finish()).substr(0, 16));
    return std::shared_ptr<const Definition>(std::move(made_));
  }

  std::string_view name() const { return made_ == nullptr ? "" : std::string_view(made_->name); }

 private:
  Status ReadHead(const Reader& top) {
    XLA_GPU_RETURN_IF_ERROR(top.Read("name", made_->name));
    const std::string& name = made_->name;
    if (name.empty() || name.size() > kMaxName ||
        std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
      std::string came = json::Excerpt(name);
      made_->name.clear();
      return InvalidArgument("name is \"", came, "\"; it must be a line of at most ", kMaxName,
                             " bytes, the custom call's target");
    }
    XLA_GPU_RETURN_IF_ERROR(top.Read("doc", made_->doc));
    XLA_GPU_RETURN_IF_ERROR(top.Read("capture", made_->capture));
    return top.Read("workspace", made_->workspace);
  }

  Status ReadResults(const Reader& top) {
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, top.Items("results"));
    for (json::Node& item : *items) {
      const std::string where = StrCat("results[", made_->results.size(), "]");
      XLA_GPU_ASSIGN_OR_RETURN(
          const Reader reader,
          Reader::Open(where, item, {"name", "like", "dtype", "alias_of", "doc"}, 1));
      ResultSpec result;
      DType dtype = DType::kInvalid;
      XLA_GPU_RETURN_IF_ERROR(reader.Read("name", result.name));
      XLA_GPU_RETURN_IF_ERROR(CheckName(reader.Where("name"), result.name));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("like", result.like));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("alias_of", result.alias_of));
      XLA_GPU_RETURN_IF_ERROR(reader.ReadDType("dtype", dtype));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("doc", result.doc));
      if (dtype != DType::kInvalid) result.dtype = DTypeName(dtype);
      if (!result.alias_of.empty()) result.kind = ResultKind::kAlias;
      if (!result.alias_of.empty() && (!result.like.empty() || !result.dtype.empty())) {
        return InvalidArgument(where, " has alias_of and ", result.like.empty() ? "dtype" : "like",
                               "; an alias is of its argument's type");
      }
      made_->results.push_back(std::move(result));
    }
    return OkStatus();
  }

  Status ReadArguments(const Reader& top) {
    given_arguments_ = top.Find("arguments") != nullptr;
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, top.Items("arguments"));
    for (json::Node& item : *items) {
      const std::string where = StrCat("arguments[", made_->arguments.size(), "]");
      XLA_GPU_ASSIGN_OR_RETURN(const Reader reader,
                               Reader::Open(where, item, {"name", "dtypes", "optional", "doc"}, 1));
      ArgSpec arg;
      std::vector<std::string> dtypes;
      XLA_GPU_RETURN_IF_ERROR(reader.Read("name", arg.name));
      XLA_GPU_RETURN_IF_ERROR(CheckName(reader.Where("name"), arg.name));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("dtypes", dtypes));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("optional", arg.optional));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("doc", arg.doc));
      for (const std::string& name : dtypes) {
        const auto dtype = DTypeFromName(name);
        if (!dtype) {
          return InvalidArgument(where, ".dtypes has \"", json::Excerpt(name),
                                 "\", which is no dtype");
        }
        arg.dtypes.push_back(*dtype);
      }
      if (!arg.optional && !made_->arguments.empty() && made_->arguments.back().optional) {
        return InvalidArgument(where,
                               " is required but follows an optional one; optional "
                               "arguments come last");
      }
      made_->arguments.push_back(std::move(arg));
    }
    return OkStatus();
  }

  Status ReadScalars(const Reader& top) {
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, top.Items("scalars"));
    for (json::Node& item : *items) {
      const std::string where = StrCat("scalars[", made_->scalars.size(), "]");
      XLA_GPU_ASSIGN_OR_RETURN(
          const Reader reader,
          Reader::Open(where, item, {"name", "type", "default", "derived", "doc"}, 1));
      Scalar scalar;
      XLA_GPU_RETURN_IF_ERROR(reader.Read("name", scalar.name));
      XLA_GPU_RETURN_IF_ERROR(CheckName(reader.Where("name"), scalar.name));
      XLA_GPU_RETURN_IF_ERROR(reader.ReadDType("type", scalar.type));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("derived", scalar.derived));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("doc", scalar.doc));
      if (json::Node* value = reader.Find("default"))
        default_nodes_.push_back({made_->scalars.size(), value});
      if (scalar.type == DType::kInvalid && reader.Find("type") != nullptr) {
        return InvalidArgument(where, ".type is empty; it must be a dtype");
      }
      made_->scalars.push_back(std::move(scalar));
    }
    return OkStatus();
  }

  // Once all types are known.
  Status ReadDefaults() {
    for (const auto& [index, node] : default_nodes_) {
      Scalar& scalar = made_->scalars[index];
      const std::string where = StrCat("the default of ", scalar.name);
      if (const bool* flag = std::get_if<bool>(&node->value); flag && scalar.type == DType::kPred) {
        scalar.default_value = *flag;
      } else if (const auto* number = std::get_if<int64_t>(&node->value);
                 number && scalar.type != DType::kPred) {
        scalar.default_value =
            IsFloat(scalar.type) ? AttrValue(static_cast<double>(*number)) : AttrValue(*number);
      } else if (const double* real = std::get_if<double>(&node->value);
                 real && IsFloat(scalar.type)) {
        scalar.default_value = *real;
      } else {
        return json::MustBe(where, *node, StrCat("a ", DTypeName(scalar.type)));
      }
    }
    default_nodes_.clear();
    return OkStatus();
  }

  Status ReadImplementation(const std::string& where, Platform platform, json::Node& node) {
    XLA_GPU_ASSIGN_OR_RETURN(
        const Reader reader,
        Reader::Open(where, node,
                     {"kind",          "text",    "file",        "options",      "image",
                      "arch",          "entry",   "library",     "symbol",       "address",
                      "libtvm_ffi",    "owned",   "api_version", "opaque",       "parameters",
                      "returns_error", "cluster", "cooperative", "programmatic", "aligned"},
                     1));
    Implementation made;
    std::string kind;
    XLA_GPU_RETURN_IF_ERROR(reader.Read("kind", kind));
    const auto* known = std::ranges::find(kKinds, kind);
    if (known == std::end(kKinds)) {
      return InvalidArgument(where, ".kind is \"", json::Excerpt(kind), "\"; allowed are ",
                             StrJoin(kKinds, ", "));
    }
    made.kind = static_cast<Implementation::Kind>(known - kKinds);
    using Kind = Implementation::Kind;
    const bool on_cuda_only = made.is_launched();
    if (platform == Platform::kCuda ? made.kind == Kind::kHostSource : on_cuda_only) {
      return InvalidArgument(where, ".kind is \"", kind, "\", which does not run on ",
                             PlatformName(platform));
    }
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
    int64_t address = 0, api_version = 0;
    constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
    XLA_GPU_RETURN_IF_ERROR(reader.Read("address", address, 1, kMaxInt));
    XLA_GPU_RETURN_IF_ERROR(reader.Read("api_version", api_version, 1, 3));
    made.address = static_cast<uint64_t>(address);
    made.api_version = static_cast<int>(api_version);
    std::string image;
    XLA_GPU_RETURN_IF_ERROR(reader.Read("image", image));
    XLA_GPU_ASSIGN_OR_RETURN(made.image, FromBase64(reader.Where("image"), image));
    if (json::Node* cluster = reader.Find("cluster")) {
      XLA_GPU_ASSIGN_OR_RETURN(std::vector<int64_t> dims,
                               json::Ints(reader.Where("cluster"), *cluster));
      if (dims.size() != 3 ||
          std::ranges::any_of(dims, [](int64_t d) { return d < 1 || d > 16; })) {
        return InvalidArgument(reader.Where("cluster"), " is [", StrJoin(dims, ","),
                               "]; it must be three ints of 1 to 16");
      }
      std::ranges::copy(dims, made.cluster.begin());
    }
    XLA_GPU_RETURN_IF_ERROR(CheckSource(where, made));
    XLA_GPU_RETURN_IF_ERROR(ReadParameters(reader, platform, made));
    XLA_GPU_RETURN_IF_ERROR(ReadAligned(reader, made));
    made_->implementations[static_cast<size_t>(platform)] = std::move(made);
    return OkStatus();
  }

  static Status CheckSource(const std::string& where, const Implementation& made) {
    using Kind = Implementation::Kind;
    const auto missing = [&where](std::string_view member, std::string_view kind) {
      return InvalidArgument(where, " lacks the member '", member, "', which a ", kind, " needs");
    };
    const std::string_view kind = kKinds[static_cast<size_t>(made.kind)];
    switch (made.kind) {
      case Kind::kCudaSource:
      case Kind::kHostSource:
        if (made.text.empty()) return missing("text", kind);
        if (made.entry.empty()) return missing("entry", kind);
        break;
      case Kind::kCudaImage:
        if (made.image.empty()) return missing("image", kind);
        if (made.entry.empty()) return missing("entry", kind);
        break;
      case Kind::kLegacy:
        if (made.api_version == 0) return missing("api_version", kind);
        [[fallthrough]];
      case Kind::kFunction:
      case Kind::kTvmFfi:
        if (made.address == 0 && made.library.empty()) return missing("library", kind);
        if (made.address == 0 && made.symbol.empty()) return missing("symbol", kind);
        break;
    }
    return OkStatus();
  }

  // From the source's own text, the arguments and scalars that it declares.
  StatusOr<std::vector<DeclaredParameter>> Declare(const Implementation& made) {
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<DeclaredParameter> declared,
                             ParseSignature(made.text, made.entry));
    const bool first = !declared_;
    declared_ = true;
    for (const DeclaredParameter& parameter : declared) {
      if (IsKnown(parameter.name)) {
        auto scalar = std::ranges::find(made_->scalars, parameter.name, &Scalar::name);
        if (scalar != made_->scalars.end() && scalar->type == DType::kInvalid) {
          scalar->type = parameter.type;
        }
        continue;
      }
      if (!first || (parameter.is_pointer && given_arguments_)) {
        return InvalidArgument("parameter ", parameter.name, " of ", made.entry,
                               " is no argument, result or scalar");
      }
      if (parameter.is_pointer) {
        ArgSpec arg{.name = parameter.name};
        if (parameter.type != DType::kInvalid) arg.dtypes = {parameter.type};
        made_->arguments.push_back(std::move(arg));
      } else {
        made_->scalars.push_back({.name = parameter.name, .type = parameter.type});
      }
      XLA_GPU_RETURN_IF_ERROR(CheckName("a parameter", parameter.name));
    }
    return declared;
  }

  bool IsKnown(std::string_view name) const {
    return (name == "workspace" && made_->workspace) || name == "stream" ||
           std::ranges::find(made_->arguments, name, &ArgSpec::name) != made_->arguments.end() ||
           std::ranges::any_of(made_->results,
                               [name](const ResultSpec& result) {
                                 return result.name == name && result.alias_of != name;
                               }) ||
           std::ranges::find(made_->scalars, name, &Scalar::name) != made_->scalars.end();
  }

  // By a name of the definition; an argument before the result that shares its buffer and name.
  StatusOr<Parameter> Named(std::string_view where, std::string_view name) const {
    using Kind = Parameter::Kind;
    const auto position = [name](const auto& list, auto member) -> std::optional<size_t> {
      const auto found = std::ranges::find(list, name, member);
      if (found == list.end()) return std::nullopt;
      return static_cast<size_t>(found - list.begin());
    };
    if (name == "stream") return Parameter{.kind = Kind::kStream};
    if (name == "workspace" && made_->workspace) return Parameter{.kind = Kind::kWorkspace};
    if (const auto i = position(made_->arguments, &ArgSpec::name)) {
      return Parameter{.kind = Kind::kArgument, .index = *i};
    }
    if (const auto i = position(made_->results, &ResultSpec::name)) {
      return Parameter{.kind = Kind::kResult, .index = *i};
    }
    if (const auto i = position(made_->scalars, &Scalar::name)) {
      return Parameter{.kind = Kind::kScalar, .index = *i, .type = made_->scalars[*i].type};
    }
    return InvalidArgument(where, " is \"", json::Excerpt(name),
                           "\", which is no argument, result or scalar of the definition",
                           name == "workspace" ? " (workspace: true is missing)" : "");
  }

  StatusOr<Parameter> ToParameter(const std::string& where, json::Node& node) const {
    using Kind = Parameter::Kind;
    if (std::holds_alternative<std::nullptr_t>(node.value)) return Parameter{};
    if (const auto* name = std::get_if<std::string>(&node.value)) return Named(where, *name);
    XLA_GPU_ASSIGN_OR_RETURN(
        const Reader reader,
        Reader::Open(where, node, {"type", "value", "elements_of", "dim_of", "dim"}, 1));
    Parameter made;
    XLA_GPU_RETURN_IF_ERROR(reader.ReadDType("type", made.type));
    if (json::Node* value = reader.Find("value")) {
      made.kind = Kind::kConstant;
      const auto* flag = std::get_if<bool>(&value->value);
      const auto* number = std::get_if<int64_t>(&value->value);
      const auto* real = std::get_if<double>(&value->value);
      if (real != nullptr && !IsFloat(made.type)) real = nullptr;
      if (flag == nullptr && number == nullptr && real == nullptr) {
        return json::MustBe(reader.Where("value"), *value, StrCat("a ", DTypeName(made.type)));
      }
      made.bits = NumberBits(made.type, flag     ? AttrValue(*flag)
                                        : number ? AttrValue(*number)
                                                 : AttrValue(*real));
      return made;
    }
    std::string of;
    made.kind = reader.Find("dim_of") != nullptr ? Kind::kDimension : Kind::kElements;
    const std::string_view member = made.kind == Kind::kDimension ? "dim_of" : "elements_of";
    XLA_GPU_RETURN_IF_ERROR(reader.Read(member, of));
    int64_t dim = 0;
    XLA_GPU_RETURN_IF_ERROR(reader.Read("dim", dim, 0, kMaxRank - 1));
    made.dim = static_cast<size_t>(dim);
    const auto arg = std::ranges::find(made_->arguments, of, &ArgSpec::name);
    if (arg == made_->arguments.end()) {
      return InvalidArgument(reader.Where(member), " is \"", json::Excerpt(of),
                             "\", which is no argument");
    }
    made.index = static_cast<size_t>(arg - made_->arguments.begin());
    return made;
  }

  Status ReadParameters(const Reader& reader, Platform platform, Implementation& made) {
    std::vector<DeclaredParameter> declared;
    const bool is_source = !made.text.empty();
    const bool given = reader.Find("parameters") != nullptr;
    if (is_source && !given) {
      XLA_GPU_ASSIGN_OR_RETURN(declared, Declare(made));
    }
    XLA_GPU_RETURN_IF_ERROR(ReadDefaults());
    if (given) {
      XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, reader.Items("parameters"));
      for (json::Node& item : *items) {
        const std::string where =
            StrCat(reader.Where("parameters"), "[", made.parameters.size(), "]");
        XLA_GPU_ASSIGN_OR_RETURN(Parameter parameter, ToParameter(where, item));
        made.parameters.push_back(parameter);
      }
    } else if (is_source) {
      for (const DeclaredParameter& parameter : declared) {
        XLA_GPU_ASSIGN_OR_RETURN(Parameter named, Named("a parameter", parameter.name));
        made.parameters.push_back(named);
      }
    } else {
      XLA_GPU_RETURN_IF_ERROR(DefaultParameters(platform, made));
    }
    if (made.parameters.size() > kMaxParameters) {
      return InvalidArgument(reader.Where("parameters"), " are ", made.parameters.size(),
                             "; at most ", kMaxParameters, " are allowed");
    }
    for (const Parameter& parameter : made.parameters) {
      if (DTypeSize(parameter.type) == 0 || IsFloat8(parameter.type)) {
        const std::string name =
            parameter.kind == Parameter::Kind::kScalar ? made_->scalars[parameter.index].name : "?";
        return InvalidArgument(
            "the type of scalar ", name,
            " is not known; give it: pred, an integer's or a float's of 16 to 64 "
            "bits");
      }
    }
    return is_source ? CheckTaken(made) : OkStatus();
  }

  // That a source's function has a parameter for each output and scalar.
  Status CheckTaken(const Implementation& made) const {
    const auto takes = [&made](Parameter::Kind kind, size_t index) {
      return std::ranges::any_of(made.parameters, [=](const Parameter& parameter) {
        return parameter.kind == kind && parameter.index == index;
      });
    };
    const auto refuse = [&made](std::string_view what, std::string_view name) {
      return InvalidArgument(what, " ", name, " is no parameter of ", made.entry);
    };
    for (size_t i = 0; i < made_->results.size(); ++i) {
      const ResultSpec& result = made_->results[i];
      const bool is_alias = result.kind == ResultKind::kAlias;
      if (!is_alias && !takes(Parameter::Kind::kResult, i)) return refuse("output", result.name);
    }
    for (size_t i = 0; i < made_->scalars.size(); ++i) {
      if (!takes(Parameter::Kind::kScalar, i)) return refuse("scalar", made_->scalars[i].name);
    }
    return OkStatus();
  }

  Status ReadAligned(const Reader& reader, Implementation& made) const {
    std::vector<std::string> names;
    XLA_GPU_RETURN_IF_ERROR(reader.Read("aligned", names));
    for (const std::string& name : names) {
      XLA_GPU_ASSIGN_OR_RETURN(const Parameter named, Named(reader.Where("aligned"), name));
      bool found = false;
      for (Parameter& parameter : made.parameters) {
        if (parameter.kind != named.kind || parameter.index != named.index) continue;
        found = parameter.aligned =
            named.kind == Parameter::Kind::kArgument || named.kind == Parameter::Kind::kResult;
      }
      if (!found || !made.is_launched()) {
        return InvalidArgument(reader.Where("aligned"), " has \"", json::Excerpt(name),
                               "\", which is no address that a launched kernel takes");
      }
    }
    return OkStatus();
  }

  // Arguments, results that are no aliases, scalars; a launcher takes the stream first.
  Status DefaultParameters(Platform platform, Implementation& made) {
    using Kind = Parameter::Kind;
    if (made.kind == Implementation::Kind::kFunction && platform == Platform::kCuda) {
      made.parameters.push_back({.kind = Kind::kStream});
    }
    for (size_t i = 0; i < made_->arguments.size(); ++i) {
      made.parameters.push_back({.kind = Kind::kArgument, .index = i});
    }
    for (size_t i = 0; i < made_->results.size(); ++i) {
      if (made_->results[i].kind == ResultKind::kAlias) continue;
      made.parameters.push_back({.kind = Kind::kResult, .index = i});
    }
    for (size_t i = 0; i < made_->scalars.size(); ++i) {
      made.parameters.push_back(
          {.kind = Kind::kScalar, .index = i, .type = made_->scalars[i].type});
    }
    return OkStatus();
  }

  // No name twice, but for a result that shares its argument's buffer; references that hold.
  Status CheckNames() {
    const auto is_argument = [this](std::string_view name) {
      return std::ranges::find(made_->arguments, name, &ArgSpec::name) != made_->arguments.end();
    };
    std::vector<std::string_view> names;
    for (const ArgSpec& arg : made_->arguments) names.push_back(arg.name);
    for (const Scalar& scalar : made_->scalars) names.push_back(scalar.name);
    for (const ResultSpec& result : made_->results) {
      for (const auto& [member, name] :
           {std::pair("like", &result.like), std::pair("alias_of", &result.alias_of)}) {
        if (!name->empty() && !is_argument(*name)) {
          return InvalidArgument("result ", result.name, ": ", member, " is \"",
                                 json::Excerpt(*name), "\", which is no argument");
        }
      }
      if (result.alias_of != result.name) names.push_back(result.name);
    }
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
      return InvalidArgument("'", *twice, "' is the name of two arguments, results or scalars");
    }
    if (made_->results.empty()) {
      return InvalidArgument("there is no result; a custom call has at least one");
    }
    if (made_->arguments.size() > kMaxTensors || made_->results.size() >= kMaxTensors) {
      return InvalidArgument("there are ", made_->arguments.size(), " arguments and ",
                             made_->results.size(), " results; at most ", kMaxTensors, " and ",
                             kMaxTensors - 1, " are allowed");
    }
    constexpr size_t kMaxScalars = Attributes::kMaxAttributes - std::size(kReserved);
    if (made_->scalars.size() > kMaxScalars) {
      return InvalidArgument("there are ", made_->scalars.size(), " scalars; at most ", kMaxScalars,
                             " are allowed");
    }
    if (std::ranges::none_of(made_->implementations,
                             [](const auto& one) { return one.has_value(); })) {
      return InvalidArgument("implementations is empty; it must have CUDA, Host or both");
    }
    return OkStatus();
  }

  std::shared_ptr<Definition> made_ = std::make_shared<Definition>();
  std::vector<std::pair<size_t, json::Node*>> default_nodes_;
  bool given_arguments_ = false;
  bool declared_ = false;
};

}  // namespace

StatusOr<std::shared_ptr<const Definition>> ParseDefinition(std::string_view text) {
  Parser parser;
  auto made = parser.Parse(text);
  if (made.ok()) return made;
  const std::string_view name = parser.name();
  return made.status().After(name.empty() ? "kernel" : name, ": ");
}

}  // namespace xla_gpu::user_kernel
