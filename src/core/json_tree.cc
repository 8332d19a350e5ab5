#include "src/core/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::json {
namespace {

// The events of nlohmann's parser as a tree. Each returns false to stop at the first error.
class TreeBuilder {
 public:
  using Json = nlohmann::json;

  explicit TreeBuilder(const Limits& limits) : limits_(limits) {}

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
    if (members.size() == limits_.members) {
      return Fail("an object has more than ", limits_.members, " members");
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
  bool Add(Value value) {
    if (++nodes_ > limits_.nodes) return Fail("more than ", limits_.nodes, " values");
    open_.back()->push_back({std::exchange(key_, {}), std::move(value)});
    return true;
  }
  // The open lists are each in the last item of the one before, so their addresses hold.
  template <typename Container>
  bool Open() {
    if (open_.size() > limits_.depth) {
      return Fail("nested deeper than ", limits_.depth, " levels");
    }
    if (!Add(Container{})) return false;
    open_.push_back(&std::get<Container>(open_.back()->back().value).items);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const Limits limits_;
  std::vector<Node> top_;  // the root
  std::vector<std::vector<Node>*> open_ = {&top_};
  std::string key_;
  std::string error_;
  size_t nodes_ = 0;
};

}  // namespace

StatusOr<Node> Parse(std::string_view text, const Limits& limits) {
  TreeBuilder tree(limits);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &tree)) return std::move(tree.root());
  return InvalidArgument(tree.error());
}

std::string Excerpt(std::string_view text, size_t max_size) {
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

Status MustBe(std::string_view where, const Node& node, std::string_view what) {
  return InvalidArgument(where, " is ", Describe(node), "; it must be ", what);
}

StatusOr<Reader> Reader::Open(std::string where, Node& node, std::vector<std::string_view> names,
                              size_t num_required) {
  auto* object = std::get_if<Object>(&node.value);
  if (object == nullptr) {
    return MustBe(where, node, StrCat("an object with the members ", StrJoin(names, ", ")));
  }
  Reader reader;
  reader.members_.resize(names.size());
  for (Node& member : object->items) {
    const auto known = std::ranges::find(names, member.name);
    if (known == names.end()) {
      return InvalidArgument(where, " has the unknown member '", Excerpt(member.name),
                             "'; allowed are: ", StrJoin(names, ", "));
    }
    reader.members_[static_cast<size_t>(known - names.begin())] = &member;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (reader.members_[i] == nullptr) {
      return InvalidArgument(where, " lacks the member '", names[i], "'");
    }
  }
  reader.names_ = std::move(names);
  if (where.find(' ') == std::string::npos) reader.path_ = std::move(where) + ".";
  return reader;
}

Node* Reader::Find(std::string_view name) const {
  const auto at = static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
  return at < members_.size() ? members_[at] : nullptr;
}

std::string Reader::Where(std::string_view name) const { return StrCat(path_, name); }

template <typename T>
Status Reader::ReadAs(std::string_view name, std::string_view what, T& out) const {
  Node* node = Find(name);
  if (node == nullptr) return OkStatus();
  XLA_GPU_ASSIGN_OR_RETURN(T * value, As<T>(Where(name), *node, what));
  out = std::move(*value);
  return OkStatus();
}

Status Reader::Read(std::string_view name, std::string& out) const {
  return ReadAs(name, "a string", out);
}

Status Reader::Read(std::string_view name, bool& out) const {
  return ReadAs(name, "true or false", out);
}

Status Reader::Read(std::string_view name, int64_t& out, int64_t low, int64_t high) const {
  XLA_GPU_RETURN_IF_ERROR(ReadAs(name, "an int", out));
  if (Find(name) == nullptr || (out >= low && out <= high)) return OkStatus();
  return InvalidArgument(Where(name), " is ", out, "; it must be ", low, " to ", high);
}

Status Reader::Read(std::string_view name, std::vector<int64_t>& out) const {
  if (const Node* node = Find(name)) {
    XLA_GPU_ASSIGN_OR_RETURN(out, Ints(Where(name), *node));
  }
  return OkStatus();
}

Status Reader::Read(std::string_view name, std::vector<std::string>& out) const {
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<Node> * items, Items(name));
  for (Node& item : *items) {
    XLA_GPU_ASSIGN_OR_RETURN(
        std::string * text,
        As<std::string>(StrCat(Where(name), "[", out.size(), "]"), item, "a string"));
    out.push_back(std::move(*text));
  }
  return OkStatus();
}

Status Reader::Read(std::string_view name, DType& out) const {
  if (Find(name) == nullptr) return OkStatus();
  std::string text;
  XLA_GPU_RETURN_IF_ERROR(ReadAs(name, "a string such as \"f32\"", text));
  XLA_GPU_ASSIGN_OR_RETURN(out, DTypeOf(Where(name), text));
  return OkStatus();
}

template <typename List>
StatusOr<std::vector<Node>*> Reader::ListOf(std::string_view name, std::string_view what) const {
  static std::vector<Node>& none = *new std::vector<Node>;
  Node* node = Find(name);
  if (node == nullptr) return &none;
  XLA_GPU_ASSIGN_OR_RETURN(List * list, As<List>(Where(name), *node, what));
  return &list->items;
}

StatusOr<std::vector<Node>*> Reader::Items(std::string_view name, std::string_view what) const {
  return ListOf<Array>(name, what);
}

StatusOr<std::vector<Node>*> Reader::Members(std::string_view name) const {
  return ListOf<Object>(name, "an object");
}

StatusOr<DType> DTypeOf(std::string_view where, std::string_view text) {
  if (const std::optional<DType> dtype = DTypeFromName(text)) return *dtype;
  std::vector<std::string_view> all;
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype != DType::kInvalid) all.push_back(info.name);
  }
  return InvalidArgument(where, " is \"", Excerpt(text), "\"; allowed are ", StrJoin(all, ", "));
}

StatusOr<std::vector<int64_t>> Ints(std::string_view where, const Node& node) {
  const auto* array = std::get_if<Array>(&node.value);
  if (array == nullptr) return MustBe(where, node, "an array of ints");
  std::vector<int64_t> ints;
  for (const Node& item : array->items) {
    const auto* value = std::get_if<int64_t>(&item.value);
    if (value == nullptr) {
      return InvalidArgument(where, " holds ", Describe(item), "; an array must hold ints only");
    }
    ints.push_back(*value);
  }
  return ints;
}

}  // namespace xla_gpu::json
