#include "src/xla/opaque.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/core/schema_json.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kMaxDepth = 8;                  // the format needs 4
constexpr size_t kMaxNodes = size_t{64} * 1024;  // values in one text
constexpr size_t kMaxMembers = 64;               // members of one object

// ---- Reading JSON: a small tree, built so that nothing JSON can say is lost or bent.
// -------------

// nlohmann's own DOM turns an integer of 30 digits into a float and keeps the last of two equal
// members; both would be a wrong number here.
struct Member;
struct Node {
  enum class Kind { kNull, kBool, kInt, kFloat, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Node> items;      // kArray
  std::vector<Member> members;  // kObject

  const Node* Find(std::string_view name) const;
  Node* Find(std::string_view name);
};

struct Member {
  std::string name;
  Node value;
};

const Node* Node::Find(std::string_view name) const {
  for (const Member& member : members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

Node* Node::Find(std::string_view name) {
  return const_cast<Node*>(std::as_const(*this).Find(name));
}

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
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kBool:
      return node.boolean ? "true" : "false";
    case Node::Kind::kInt:
      return StrCat("the int ", node.integer);
    case Node::Kind::kFloat:
      return StrCat("the float ", node.number);
    case Node::Kind::kString:
      return StrCat("the string \"", Excerpt(node.text), "\"");
    case Node::Kind::kArray:
      return StrCat("an array of ", node.items.size());
    case Node::Kind::kObject:
      return StrCat("an object of ", node.members.size());
  }
  return "nothing";
}

// The events of nlohmann's parser as a Node tree. Each returns false to stop at the first error.
class TreeBuilder {
 public:
  using Json = nlohmann::json;

  // NOLINTBEGIN(readability-identifier-naming): the names are nlohmann's SAX interface.
  bool null() { return Add(Node{}) != nullptr; }
  bool boolean(bool value) {
    Node node;
    node.kind = Node::Kind::kBool;
    node.boolean = value;
    return Add(std::move(node)) != nullptr;
  }
  bool number_integer(int64_t value) {
    Node node;
    node.kind = Node::Kind::kInt;
    node.integer = value;
    return Add(std::move(node)) != nullptr;
  }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(StrCat("the int ", value, " does not fit 64 signed bits"));
    }
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& digits) {
    if (digits.find_first_of(".eE") == std::string::npos) {
      return Fail(StrCat("the int ", Excerpt(digits), " does not fit 64 signed bits"));
    }
    if (!std::isfinite(value)) return Fail(StrCat("the float ", Excerpt(digits), " is too large"));
    Node node;
    node.kind = Node::Kind::kFloat;
    node.number = value;
    return Add(std::move(node)) != nullptr;
  }
  bool string(std::string& value) {
    Node node;
    node.kind = Node::Kind::kString;
    node.text = std::move(value);
    return Add(std::move(node)) != nullptr;
  }
  bool binary(Json::binary_t&) { return Fail("binary data"); }
  bool start_object(size_t) { return Open(Node::Kind::kObject); }
  bool start_array(size_t) { return Open(Node::Kind::kArray); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    Node& object = *open_.back();
    if (object.Find(name) != nullptr) {
      return Fail(StrCat("member '", Excerpt(name), "' is given twice"));
    }
    if (object.members.size() == kMaxMembers) {
      return Fail(StrCat("an object has more than ", kMaxMembers, " members"));
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": the
    // position is told in bytes instead, as the text is one line.
    std::string_view what = error.what();
    const auto drop_through = [&what](std::string_view mark) {
      const size_t at = what.find(mark);
      if (at != what.npos) what.remove_prefix(at + mark.size());
    };
    drop_through("] ");
    if (what.starts_with("parse error")) drop_through(": ");
    return Fail(StrCat("not JSON at byte ", position, ": ", Excerpt(what, 120)));
  }
  // NOLINTEND(readability-identifier-naming)

  const std::string& error() const { return error_; }
  Node& root() { return root_; }

 private:
  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  Node* Add(Node node) {
    if (++nodes_ > kMaxNodes) {
      Fail(StrCat("more than ", kMaxNodes, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    Node& parent = *open_.back();
    if (parent.kind == Node::Kind::kArray) {
      return &parent.items.emplace_back(std::move(node));
    }
    return &parent.members.emplace_back(Member{std::move(key_), std::move(node)}).value;
  }

  // The open nodes are each the last child of the one before, so their addresses hold.
  bool Open(Node::Kind kind) {
    if (open_.size() == kMaxDepth) {
      return Fail(StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    Node node;
    node.kind = kind;
    Node* added = Add(std::move(node));
    if (added == nullptr) return false;
    open_.push_back(added);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Node root_;
  std::vector<Node*> open_;
  std::string key_;
  std::string error_;
  size_t nodes_ = 0;
};

// ---- From the tree to the call ------------------------------------------------------------------

Status Bad(std::string message) { return InvalidArgument("opaque: " + std::move(message)); }

Status CheckMembers(std::string_view where, const Node& node,
                    std::initializer_list<std::string_view> required,
                    std::initializer_list<std::string_view> optional = {}) {
  std::vector<std::string_view> known(required);
  known.insert(known.end(), optional);
  if (node.kind != Node::Kind::kObject) {
    return Bad(StrCat(where, " is ", Describe(node), "; it must be an object with the members ",
                      StrJoin(known, ", ")));
  }
  for (const auto& [name, value] : node.members) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Bad(StrCat(where, " has the unknown member '", Excerpt(name),
                        "'; allowed are: ", StrJoin(known, ", ")));
    }
  }
  for (std::string_view name : required) {
    if (node.Find(name) == nullptr) {
      return Bad(StrCat(where, " lacks the member '", name, "'"));
    }
  }
  return OkStatus();
}

// Dimensions that are not negative and a byte size that int64 holds.
Status CheckSpec(std::string_view where, const TensorSpec& spec) {
  int64_t bytes = DTypeSize(spec.dtype);
  if (bytes == 0) {
    return Bad(StrCat(where, ".dtype is number ", static_cast<int>(spec.dtype),
                      ", which is no dtype of xla_gpu"));
  }
  if (spec.shape.size() > kMaxRank) {
    return Bad(StrCat(where, ".shape has ", spec.shape.size(), " dimensions; at most ", kMaxRank,
                      " are allowed"));
  }
  for (int64_t dim : spec.shape) {
    if (dim < 0) {
      return Bad(
          StrCat(where, ".shape has the dimension ", dim, "; dimensions must not be negative"));
    }
    if (dim > 0 && bytes > std::numeric_limits<int64_t>::max() / dim) {
      return Bad(
          StrCat(where, " is ", spec.ToString(), "; its size in bytes does not fit 63 bits"));
    }
    bytes *= dim;
  }
  return OkStatus();
}

StatusOr<TensorSpec> ToTensorSpec(const std::string& where, const Node& node) {
  XLA_GPU_RETURN_IF_ERROR(CheckMembers(where, node, {"dtype", "shape"}));
  TensorSpec spec;
  const Node& dtype = *node.Find("dtype");
  if (dtype.kind != Node::Kind::kString) {
    return Bad(
        StrCat(where, ".dtype is ", Describe(dtype), "; it must be a string such as \"f32\""));
  }
  const std::optional<DType> known = DTypeFromName(dtype.text);
  if (!known) {
    return Bad(StrCat(where, ".dtype is \"", Excerpt(dtype.text),
                      "\"; allowed are pred, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, "
                      "f64, f8e4m3fn and f8e5m2"));
  }
  spec.dtype = *known;
  const Node& shape = *node.Find("shape");
  if (shape.kind != Node::Kind::kArray) {
    return Bad(StrCat(where, ".shape is ", Describe(shape), "; it must be an array of ints"));
  }
  for (const Node& dim : shape.items) {
    if (dim.kind != Node::Kind::kInt) {
      return Bad(StrCat(where, ".shape holds ", Describe(dim), "; it must hold ints only"));
    }
    spec.shape.push_back(dim.integer);
  }
  XLA_GPU_RETURN_IF_ERROR(CheckSpec(where, spec));
  return spec;
}

StatusOr<std::vector<TensorSpec>> ToTensorSpecs(std::string_view where, const Node& node) {
  if (node.kind != Node::Kind::kArray) {
    return Bad(StrCat(where, " is ", Describe(node), "; it must be an array of tensor types"));
  }
  if (node.items.size() > kMaxTensors) {
    return Bad(StrCat(where, " has ", node.items.size(), " tensors; at most ", kMaxTensors,
                      " are allowed"));
  }
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < node.items.size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(TensorSpec spec,
                             ToTensorSpec(StrCat(where, "[", i, "]"), node.items[i]));
    specs.push_back(std::move(spec));
  }
  return specs;
}

StatusOr<OpaqueCall::Value> ToValue(std::string_view name, Node& node) {
  switch (node.kind) {
    case Node::Kind::kBool:
      return OpaqueCall::Value(node.boolean);
    case Node::Kind::kInt:
      return OpaqueCall::Value(node.integer);
    case Node::Kind::kFloat:
      return OpaqueCall::Value(node.number);
    case Node::Kind::kString:
      return OpaqueCall::Value(std::move(node.text));
    case Node::Kind::kArray: {
      std::vector<int64_t> values;
      for (const Node& item : node.items) {
        if (item.kind != Node::Kind::kInt) {
          return Bad(StrCat("attrs.", Excerpt(name), " holds ", Describe(item),
                            "; an array must hold ints only"));
        }
        values.push_back(item.integer);
      }
      return OpaqueCall::Value(std::move(values));
    }
    default:
      return Bad(StrCat("attrs.", Excerpt(name), " is ", Describe(node),
                        "; allowed are true or false, ints, floats, strings and arrays of ints"));
  }
}

// The bounds that the tree's own do not give, for calls that come from a text and for others alike.
Status CheckAttrs(const OpaqueCall& call) {
  size_t num_ints = 0;
  for (const OpaqueCall::Attr& attr : call.attrs) {
    if (attr.name.empty()) return Bad("attrs has a member with an empty name");
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr.value)) num_ints += ints->size();
    if (num_ints > kMaxOpaqueInts) {
      return Bad(StrCat("attrs.", Excerpt(attr.name), " brings the ints of all arrays to ",
                        num_ints, "; at most ", kMaxOpaqueInts, " are allowed"));
    }
    if (const auto* number = std::get_if<double>(&attr.value);
        number != nullptr && !std::isfinite(*number)) {
      return Bad(StrCat("attrs.", Excerpt(attr.name), " is ", *number, "; floats must be finite"));
    }
  }
  if (Status status = ViewAttributes(call).status(); !status.ok()) return Bad(status.message());
  return OkStatus();
}

Status CheckTensors(std::string_view where, const std::vector<TensorSpec>& specs) {
  if (specs.size() > kMaxTensors) {
    return Bad(
        StrCat(where, " has ", specs.size(), " tensors; at most ", kMaxTensors, " are allowed"));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    XLA_GPU_RETURN_IF_ERROR(CheckSpec(StrCat(where, "[", i, "]"), specs[i]));
  }
  return OkStatus();
}

// Of single values alone: see schema_json.cc.
struct ValueToJson {
  std::string operator()(const auto& value) const { return nlohmann::json(value).dump(); }
  std::string operator()(const std::vector<int64_t>& values) const {
    std::vector<std::string> items;
    for (const int64_t value : values) items.push_back(std::to_string(value));
    return StrCat('[', StrJoin(items, ","), ']');
  }
};

}  // namespace

OpaqueCall MakeOpaqueCall(std::string_view op, const Call& call) {
  OpaqueCall out;
  out.op = op;
  const auto copy = [](std::span<const TensorView> views, std::vector<TensorSpec>& specs) {
    for (const TensorView& view : views) {
      specs.push_back({view.dtype, {view.shape.begin(), view.shape.end()}});
    }
  };
  copy(call.args, out.args);
  copy(call.results, out.results);
  struct Owner {
    OpaqueCall::Value operator()(bool v) const { return v; }
    OpaqueCall::Value operator()(int64_t v) const { return v; }
    OpaqueCall::Value operator()(double v) const { return v; }
    OpaqueCall::Value operator()(std::string_view v) const { return std::string(v); }
    OpaqueCall::Value operator()(std::span<const int64_t> v) const {
      return std::vector<int64_t>(v.begin(), v.end());
    }
  };
  for (const Attribute& attr : call.attributes->all()) {
    out.attrs.push_back({std::string(attr.name), std::visit(Owner{}, attr.value)});
  }
  return out;
}

StatusOr<Attributes> ViewAttributes(const OpaqueCall& call) {
  struct Viewer {
    AttrValue operator()(bool v) const { return v; }
    AttrValue operator()(int64_t v) const { return v; }
    AttrValue operator()(double v) const { return v; }
    AttrValue operator()(const std::string& v) const { return std::string_view(v); }
    AttrValue operator()(const std::vector<int64_t>& v) const {
      return std::span<const int64_t>(v);
    }
  };
  Attributes attributes;
  for (const OpaqueCall::Attr& attr : call.attrs) {
    XLA_GPU_RETURN_IF_ERROR(attributes.Add(attr.name, std::visit(Viewer{}, attr.value)));
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
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("args", call.args));
  XLA_GPU_RETURN_IF_ERROR(CheckTensors("results", call.results));
  XLA_GPU_RETURN_IF_ERROR(CheckAttrs(call));
  const ValueToJson to_json;
  std::string text;
  try {
    std::vector<std::string> attrs;
    for (const OpaqueCall::Attr& attr : call.attrs) {
      attrs.push_back(StrCat(to_json(attr.name), ':', std::visit(to_json, attr.value)));
    }
    text = StrCat(R"({"op":)", to_json(call.op), R"(,"args":)", TensorSpecsToJson(call.args),
                  R"(,"results":)", TensorSpecsToJson(call.results), R"(,"attrs":{)",
                  StrJoin(attrs, ","), "}}");
  } catch (const nlohmann::json::exception&) {  // type_error 316, the only one dump knows
    return Bad("the op's name, an attribute's name or a string attribute is not UTF-8");
  }
  if (text.size() > kMaxOpaqueBytes) {
    return Bad(
        StrCat("the text has ", text.size(), " bytes; at most ", kMaxOpaqueBytes, " are allowed"));
  }
  return text;
}

StatusOr<OpaqueCall> DecodeOpaque(std::string_view text) {
  if (text.size() > kMaxOpaqueBytes) {
    return Bad(
        StrCat("the text has ", text.size(), " bytes; at most ", kMaxOpaqueBytes, " are allowed"));
  }
  if (text.empty()) {
    return Bad(
        "the text is empty; the call must carry the JSON that xla_gpu_opaque() writes as its "
        "backend_config");
  }
  TreeBuilder tree;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &tree)) return Bad(tree.error());
  Node& root = tree.root();
  XLA_GPU_RETURN_IF_ERROR(CheckMembers("the call", root, {"op", "args", "results"}, {"attrs"}));
  OpaqueCall call;
  const Node& op = *root.Find("op");
  if (op.kind != Node::Kind::kString) {
    return Bad(StrCat("op is ", Describe(op), "; it must be a string, the name of an op"));
  }
  call.op = op.text;
  XLA_GPU_ASSIGN_OR_RETURN(call.args, ToTensorSpecs("args", *root.Find("args")));
  XLA_GPU_ASSIGN_OR_RETURN(call.results, ToTensorSpecs("results", *root.Find("results")));
  Node* attrs = root.Find("attrs");
  if (attrs == nullptr) return call;
  if (attrs->kind != Node::Kind::kObject) {
    return Bad(StrCat("attrs is ", Describe(*attrs), "; it must be an object"));
  }
  for (auto& [name, node] : attrs->members) {
    XLA_GPU_ASSIGN_OR_RETURN(OpaqueCall::Value value, ToValue(name, node));
    call.attrs.push_back({std::move(name), std::move(value)});
  }
  XLA_GPU_RETURN_IF_ERROR(CheckAttrs(call));
  return call;
}

}  // namespace xla_gpu::xla
