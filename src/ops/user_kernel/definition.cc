#include "src/ops/user_kernel/definition.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/includes.h"
#include "src/core/json_tree.h"
#include "src/core/strings.h"
#include "src/cuda/sha256.h"
#include "src/ops/user_kernel/implementation.h"
#include "src/ops/user_kernel/parameters.h"
#include "src/ops/user_kernel/signature.h"

namespace xla_gpu::user_kernel {
namespace {

using json::Reader;

constexpr size_t kMaxBytes = size_t{256} << 20;  // of a definition: an image of 190 MB
constexpr size_t kMaxName = 200;

// What calls carry besides the user's own names.
constexpr std::string_view kReserved[] = {
    kKernelAttribute, kDefinitionAttribute, kOptionalArgsAttribute, "grid",      "block",
    "shared_memory",  "workspace_bytes",    "result_types",         "workspace", "stream"};

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

// Calls that XLA resolves by their target's name, without a word: it drops them, moves buffers, or
// ends the process where their operands are none of its own.
bool IsXlasOwn(std::string_view target) {
  static constexpr std::string_view kNames[] = {
      "Sharding",   "SPMDFullToShardShape", "SPMDShardToFullShape",      "LayoutConstraint",
      "MoveToHost", "MoveToDevice",         "annotate_device_placement", "PadToStatic",
      "TopK",       "SliceToDynamic"};
  return std::ranges::find(kNames, target) != std::end(kNames) || target.starts_with("xla.sdy.") ||
         (target.starts_with("__") && target.find('$') != target.npos);  // __cublas$gemm
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
    XLA_GPU_RETURN_IF_ERROR(ReadImplementations(*top.Find("implementations")));
    XLA_GPU_RETURN_IF_ERROR(CheckNames());
    cuda::Sha256 hash;
    hash.Update(text);
    made_->key =
        StrCat(made_->name, "@", cuda::Sha256::Hex(hash.Finish()).substr(0, 16), OfIncludes());
    return std::shared_ptr<const Definition>(std::move(made_));
  }

  std::string_view name() const { return made_ == nullptr ? "" : std::string_view(made_->name); }

 private:
  // So that a kernel that is made again after a file that it includes has changed is another one.
  std::string OfIncludes() const {
    std::vector<std::string> texts;
    for (const auto& made : made_->implementations) {
      if (!made || !made->is_source()) continue;
      for (std::string& text : IncludedTexts(made->text, made->file, made->options)) {
        texts.push_back(std::move(text));
      }
    }
    if (texts.empty()) return "";
    cuda::Sha256 hash;
    for (const std::string& text : texts) {
      hash.Update(StrCat(text.size(), ":"));
      hash.Update(text);
    }
    return StrCat("+", cuda::Sha256::Hex(hash.Finish()).substr(0, 16));
  }

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
    if (IsXlasOwn(name)) {
      return InvalidArgument("XLA takes custom calls of this name for its own, so that the kernel ",
                             "would not run; choose another");
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
      XLA_GPU_RETURN_IF_ERROR(reader.Read("dtype", dtype));
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
        XLA_GPU_ASSIGN_OR_RETURN(
            const DType dtype,
            json::DTypeOf(StrCat(where, ".dtypes[", arg.dtypes.size(), "]"), name));
        arg.dtypes.push_back(dtype);
      }
      if (!arg.optional && !made_->arguments.empty() && made_->arguments.back().optional) {
        return InvalidArgument(
            where, " is required but follows an optional one; optional arguments come last");
      }
      made_->arguments.push_back(std::move(arg));
    }
    return OkStatus();
  }

  Status ReadScalars(const Reader& top) {
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, top.Items("scalars"));
    for (json::Node& item : *items) {
      XLA_GPU_ASSIGN_OR_RETURN(const Reader reader,
                               Reader::Open(StrCat("scalars[", made_->scalars.size(), "]"), item,
                                            {"name", "type", "default", "derived", "doc"}, 1));
      Scalar scalar;
      XLA_GPU_RETURN_IF_ERROR(reader.Read("name", scalar.name));
      XLA_GPU_RETURN_IF_ERROR(CheckName(reader.Where("name"), scalar.name));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("type", scalar.type));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("derived", scalar.derived));
      XLA_GPU_RETURN_IF_ERROR(reader.Read("doc", scalar.doc));
      default_nodes_.push_back(reader.Find("default"));
      made_->scalars.push_back(std::move(scalar));
    }
    return OkStatus();
  }

  // In an order that lets one platform's source text tell what the other's machine code takes.
  Status ReadImplementations(json::Node& node) {
    XLA_GPU_ASSIGN_OR_RETURN(const Reader platforms,
                             Reader::Open("implementations", node, {"CUDA", "Host"}, 0));
    ParsedImplementation parsed[kNumPlatforms];
    std::vector<DeclaredParameter> declared[kNumPlatforms];
    for (const Platform platform : {Platform::kCuda, Platform::kHost}) {
      json::Node* given = platforms.Find(PlatformName(platform));
      if (given == nullptr) continue;
      const auto p = static_cast<size_t>(platform);
      XLA_GPU_ASSIGN_OR_RETURN(parsed[p], ReadImplementation(platform, *given));
      made_->implementations[p] = parsed[p].made;
      const Implementation& made = *made_->implementations[p];
      if (!made.is_source() || parsed[p].parameters != nullptr) continue;
      XLA_GPU_ASSIGN_OR_RETURN(declared[p], ParseSignature(made.text, made.entry));
      XLA_GPU_RETURN_IF_ERROR(Declare(made, declared[p]));
    }
    XLA_GPU_RETURN_IF_ERROR(CheckScalarTypes());
    for (const Platform platform : {Platform::kCuda, Platform::kHost}) {
      const auto p = static_cast<size_t>(platform);
      if (!made_->implementations[p]) continue;
      XLA_GPU_ASSIGN_OR_RETURN(made_->implementations[p]->parameters,
                               ReadParameters(*made_, platform, parsed[p], declared[p]));
    }
    if (made_->implementations[0] || made_->implementations[1]) return OkStatus();
    return InvalidArgument("implementations is empty; it must have CUDA, Host or both");
  }

  // What a source text declares: names that are new become arguments and scalars, others must fit.
  Status Declare(const Implementation& made, const std::vector<DeclaredParameter>& declared) {
    const bool first = !std::exchange(declared_, true);
    for (const DeclaredParameter& parameter : declared) {
      const std::string where = StrCat("parameter ", parameter.name, " of ", made.entry);
      const auto scalar = std::ranges::find(made_->scalars, parameter.name, &Scalar::name);
      if (scalar != made_->scalars.end()) {
        if (parameter.is_pointer) {
          return InvalidArgument(where, " is a pointer, but a scalar of the definition");
        }
        if (scalar->type == DType::kInvalid) scalar->type = parameter.type;
        if (parameter.type == DType::kInvalid || parameter.type == scalar->type) continue;
        return InvalidArgument(where, " is ", DTypeName(parameter.type), " in the source text but ",
                               DTypeName(scalar->type), " in the definition");
      }
      const bool is_stream = parameter.name == "stream";
      if (is_stream && made.is_launched()) {
        return InvalidArgument(where, ": a kernel is not given its stream; name it otherwise");
      }
      const bool is_address = IsAddress(parameter.name);
      if (is_address && !parameter.is_pointer) {
        return InvalidArgument(where, " is no pointer, but an array of the definition");
      }
      if (parameter.is_const && std::ranges::find(made_->results, parameter.name,
                                                  &ResultSpec::name) != made_->results.end()) {
        return InvalidArgument(where, " is a result, but points to const");
      }
      if (is_address || is_stream) continue;
      if (!first || (parameter.is_pointer && given_arguments_)) {
        return InvalidArgument(where, " is no argument, result or scalar");
      }
      XLA_GPU_RETURN_IF_ERROR(CheckName("a parameter", parameter.name));
      if (parameter.is_pointer) {
        ArgSpec arg{.name = parameter.name};
        if (parameter.type != DType::kInvalid) arg.dtypes = {parameter.type};
        made_->arguments.push_back(std::move(arg));
      } else {
        made_->scalars.push_back({.name = parameter.name, .type = parameter.type});
        default_nodes_.push_back(nullptr);
      }
    }
    return OkStatus();
  }

  // Whether calls have an address of this name.
  bool IsAddress(std::string_view name) const {
    return (name == "workspace" && made_->workspace) ||
           std::ranges::find(made_->arguments, name, &ArgSpec::name) != made_->arguments.end() ||
           std::ranges::any_of(made_->results, [name](const ResultSpec& result) {
             return result.name == name && result.alias_of != name;
           });
  }

  Status CheckScalarTypes() {
    for (size_t i = 0; i < made_->scalars.size(); ++i) {
      Scalar& scalar = made_->scalars[i];
      XLA_GPU_RETURN_IF_ERROR(CheckNumberType(StrCat("scalar ", scalar.name), scalar.type));
      if (default_nodes_[i] == nullptr) continue;
      XLA_GPU_ASSIGN_OR_RETURN(
          scalar.default_value,
          ReadNumber(StrCat("the default of ", scalar.name), *default_nodes_[i], scalar.type));
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
    return OkStatus();
  }

  std::shared_ptr<Definition> made_ = std::make_shared<Definition>();
  std::vector<json::Node*> default_nodes_;  // of each scalar; null: none
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
