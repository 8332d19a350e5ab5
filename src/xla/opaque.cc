#include "src/xla/opaque.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/core/schema_json.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kMaxDepth = 8;                  // the format needs 4
constexpr size_t kMaxNodes = size_t{64} * 1024;  // values in one text
constexpr size_t kMaxMembers = 64;               // members of one object

// ---- The text as a tree -------------------------------------------------------------------------

// Not nlohmann's: it turns an integer of 30 digits into a float, keeps the last of two equal
// members, and allocates when it is destroyed (schema_json.cc).
struct Node;
struct Array {
  std::vector<Node> items;
};
struct Object {
  std::vector<Node> items;
};
using NodeValue = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object>;
struct Node {
  std::string name;  // of an object's member
  NodeValue value;
};

// What came, as a message shows it: short and printable, whatever was sent.
std::string Excerpt(std::string_view text, size_t max_size = 40) {
  std::string out(text.substr(0, max_size));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > max_size) out += "...";
  return out;
}

std::string Describe(const Node& node) {
  struct Describer {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return StrCat("the int ", value); }
    std::string operator()(double value) const { return StrCat("the float ", value); }
    std::string operator()(const std::string& value) const {
      return StrCat("the string \"", Excerpt(value), '"');
    }
    std::string operator()(const Array& value) const {
      return StrCat("an array of ", value.items.size());
    }
    std::string operator()(const Object& value) const {
      return StrCat("an object of ", value.items.size());
    }
  };
  return std::visit(Describer{}, node.value);
}

// The events of nlohmann's parser as a tree. Each returns false to stop at the first error.
class TreeBuilder {
 public:
  using Json = nlohmann::json;

  // NOLINTBEGIN(readability-identifier-naming): the names are nlohmann's SAX interface.
  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) {
    if (std::in_range<int64_t>(value)) return Add(static_cast<int64_t>(value));
    return Fail("the int ", value, " does not fit 64 signed bits");
  }
  bool number_float(double value, const std::string& digits) {
    if (digits.find_first_of(".eE") != std::string::npos) return Add(value);
    return Fail("the int ", Excerpt(digits), " does not fit 64 signed bits");
  }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(Json::binary_t&) { return Fail("binary data"); }
  bool start_object(size_t) { return Open<Object>(); }
  bool start_array(size_t) { return Open<Array>(); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    const std::vector<Node>& members = *open_.back();
    if (std::ranges::find(members, name, &Node::name) != members.end()) {
      return Fail("member '", Excerpt(name), "' is given twice");
    }
    if (members.size() == kMaxMembers) {
      return Fail("an object has more than ", kMaxMembers, " members");
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": the
    // position is told in bytes instead, as the text is one line.
    const std::string_view what = error.what();
    const size_t colon = what.find(": ");
    return Fail("not JSON at byte ", position, ": ",
                Excerpt(colon == what.npos ? what : what.substr(colon + 2), 120));
  }
  // NOLINTEND(readability-identifier-naming)

  const std::string& error() const { return error_; }
  Node& root() { return top_.front(); }

 private:
  bool Fail(const auto&... parts) {
    if (error_.empty()) error_ = StrCat(parts...);
    return false;
  }
  bool Add(NodeValue value) {
    if (++nodes_ > kMaxNodes) return Fail("more than ", kMaxNodes, " values");
    open_.back()->push_back({std::exchange(key_, {}), std::move(value)});
    return true;
  }
  // The open lists are each in the last item of the one before, so their addresses hold.
  template <typename Container>
  bool Open() {
    if (open_.size() > kMaxDepth) {
      return Fail("nested deeper than ", kMaxDepth, " levels");
    }
    if (!Add(Container{})) return false;
    open_.push_back(&std::get<Container>(open_.back()->back().value).items);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::vector<Node> top_;  // the root
  std::vector<std::vector<Node>*> open_ = {&top_};
  std::string key_;
  std::string error_;
  size_t nodes_ = 0;
};

// ---- From the tree to the call ------------------------------------------------------------------

Status Bad(const auto&... parts) { return InvalidArgument("opaque: ", parts...); }

Status MustBe(std::string_view where, const Node& node, std::string_view what) {
  return Bad(where, " is ", Describe(node), "; it must be ", what);
}

// The members of an object in the order of `names`; null for one that is absent, which none of the
// first `num_required` may be.
StatusOr<std::vector<Node*>> Members(std::string_view where, Node& node,
                                     std::initializer_list<std::string_view> names,
                                     size_t num_required) {
  auto* object = std::get_if<Object>(&node.value);
  if (object == nullptr) {
    return MustBe(where, node, StrCat("an object with the members ", StrJoin(names, ", ")));
  }
  std::vector<Node*> members(names.size());
  for (Node& member : object->items) {
    const auto known = std::ranges::find(names, member.name);
    if (known == names.end()) {
      return Bad(where, " has the unknown member '", Excerpt(member.name),
                 "'; allowed are: ", StrJoin(names, ", "));
    }
    members[static_cast<size_t>(known - names.begin())] = &member;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (members[i] == nullptr) {
      return Bad(where, " lacks the member '", names.begin()[i], "'");
    }
  }
  return members;
}

StatusOr<std::vector<int64_t>> ToInts(std::string_view where, const Node& node) {
  const auto* array = std::get_if<Array>(&node.value);
  if (array == nullptr) return MustBe(where, node, "an array of ints");
  std::vector<int64_t> ints;
  for (const Node& item : array->items) {
    const auto* value = std::get_if<int64_t>(&item.value);
    if (value == nullptr) {
      return Bad(where, " holds ", Describe(item), "; an array must hold ints only");
    }
    ints.push_back(*value);
  }
  return ints;
}

StatusOr<TensorSpec> ToTensorSpec(const std::string& where, Node& node) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto members, Members(where, node, {"dtype", "shape"}, 2));
  const auto* dtype = std::get_if<std::string>(&members[0]->value);
  if (dtype == nullptr) {
    return MustBe(StrCat(where, ".dtype"), *members[0], "a string such as \"f32\"");
  }
  const std::optional<DType> known = DTypeFromName(*dtype);
  if (!known) {
    DTypes all;
    for (const DTypeInfo& info : kDTypes) {
      if (info.dtype != DType::kInvalid) all.push_back(info.dtype);
    }
    return Bad(where, ".dtype is \"", Excerpt(*dtype), "\"; allowed are ", DTypesText(all));
  }
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<int64_t> shape,
                           ToInts(StrCat(where, ".shape"), *members[1]));
  return TensorSpec{*known, std::move(shape)};
}

StatusOr<std::vector<TensorSpec>> ToTensorSpecs(std::string_view where, Node& node) {
  auto* array = std::get_if<Array>(&node.value);
  if (array == nullptr) return MustBe(where, node, "an array of tensor types");
  std::vector<TensorSpec> specs;
  for (Node& item : array->items) {
    XLA_GPU_ASSIGN_OR_RETURN(TensorSpec spec,
                             ToTensorSpec(StrCat(where, "[", specs.size(), "]"), item));
    specs.push_back(std::move(spec));
  }
  return specs;
}

StatusOr<OpaqueCall::Value> ToValue(Node& node) {
  const std::string where = StrCat("attrs.", Excerpt(node.name));
  const auto convert = [&](auto& value) -> StatusOr<OpaqueCall::Value> {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, Array>) {
      XLA_GPU_ASSIGN_OR_RETURN(std::vector<int64_t> ints, ToInts(where, node));
      return OpaqueCall::Value(std::move(ints));
    } else if constexpr (std::is_same_v<T, Object> || std::is_same_v<T, std::nullptr_t>) {
      return Bad(where, " is ", Describe(node),
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
    return Bad(list, " has ", specs.size(), " tensors; at most ", kMaxTensors, " are allowed");
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const std::string where = StrCat(list, "[", i, "]");
    if (DTypeSize(spec.dtype) == 0) {
      return Bad(where, ".dtype is number ", static_cast<int>(spec.dtype),
                 ", which is no dtype of xla_gpu");
    }
    if (spec.shape.size() > kMaxRank) {
      return Bad(where, ".shape has ", spec.shape.size(), " dimensions; at most ", kMaxRank,
                 " are allowed");
    }
    if (const auto problem = TypeProblem({nullptr, spec.dtype, spec.shape}); !problem.empty()) {
      return Bad(where, " is ", spec.ToString(), "; ", problem);
    }
  }
  return OkStatus();
}

Status CheckAttrs(const OpaqueCall& call) {
  size_t num_ints = 0;
  for (const OpaqueCall::Attr& attr : call.attrs) {
    if (attr.name.empty()) return Bad("attrs has a member with an empty name");
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr.value)) num_ints += ints->size();
    if (num_ints > kMaxOpaqueInts) {
      return Bad("attrs.", Excerpt(attr.name), " brings the ints of all arrays to ", num_ints,
                 "; at most ", kMaxOpaqueInts, " are allowed");
    }
    if (const auto* number = std::get_if<double>(&attr.value);
        number != nullptr && !std::isfinite(*number)) {
      return Bad("attrs.", Excerpt(attr.name), " is ", *number, "; floats must be finite");
    }
  }
  if (Status status = ViewAttributes(call).status(); !status.ok()) return Bad(status.message());
  return OkStatus();
}

Status CheckBounds(const OpaqueCall& call) {
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("args", call.args));
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("results", call.results));
  return CheckAttrs(call);
}

Status CheckTextSize(size_t size) {
  if (size <= kMaxOpaqueBytes) return OkStatus();
  return Bad("the text has ", size, " bytes; at most ", kMaxOpaqueBytes, " are allowed");
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
    return Bad("the op's name, an attribute's name or a string attribute is not UTF-8");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckTextSize(text.size()));
  return text;
}

StatusOr<OpaqueCall> DecodeOpaque(std::string_view text) {
  XLA_GPU_RETURN_IF_ERROR(CheckTextSize(text.size()));
  if (text.empty()) {
    return Bad(
        "the text is empty; the call must carry the JSON that xla_gpu_opaque() writes as its "
        "backend_config");
  }
  TreeBuilder tree;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &tree)) return Bad(tree.error());
  XLA_GPU_ASSIGN_OR_RETURN(const auto members,
                           Members("the call", tree.root(), {"op", "args", "results", "attrs"}, 3));
  OpaqueCall call;
  auto* op = std::get_if<std::string>(&members[0]->value);
  if (op == nullptr) return MustBe("op", *members[0], "a string, the name of an op");
  call.op = std::move(*op);
  XLA_GPU_ASSIGN_OR_RETURN(call.args, ToTensorSpecs("args", *members[1]));
  XLA_GPU_ASSIGN_OR_RETURN(call.results, ToTensorSpecs("results", *members[2]));
  if (Node* const attrs = members[3]; attrs != nullptr) {
    auto* object = std::get_if<Object>(&attrs->value);
    if (object == nullptr) return MustBe("attrs", *attrs, "an object");
    for (Node& attr : object->items) {
      XLA_GPU_ASSIGN_OR_RETURN(OpaqueCall::Value value, ToValue(attr));
      call.attrs.push_back({std::move(attr.name), std::move(value)});
    }
  }
  XLA_GPU_RETURN_IF_ERROR(CheckBounds(call));
  return call;
}

}  // namespace xla_gpu::xla
