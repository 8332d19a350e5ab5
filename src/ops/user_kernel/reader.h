// The members of an object of a definition.
#ifndef XLA_GPU_OPS_USER_KERNEL_READER_H_
#define XLA_GPU_OPS_USER_KERNEL_READER_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/dtype.h"
#include "src/core/json_tree.h"
#include "src/core/status.h"
#include "src/core/strings.h"

namespace xla_gpu::user_kernel {

// Reads the members of one object, each at most once, and their types.
class Reader {
 public:
  static StatusOr<Reader> Open(std::string where, json::Node& node,
                               std::initializer_list<std::string_view> names, size_t required) {
    Reader reader;
    XLA_GPU_ASSIGN_OR_RETURN(reader.members_, json::Members(where, node, names, required));
    reader.where_ = std::move(where);
    reader.names_ = names;
    return reader;
  }

  json::Node* Find(std::string_view name) const {
    return members_[static_cast<size_t>(std::ranges::find(names_, name) - names_.begin())];
  }
  std::string Where(std::string_view name) const { return StrCat(where_, ".", name); }

  Status Read(std::string_view name, std::string& out) const {
    return ReadAs(name, "a string", out);
  }
  Status Read(std::string_view name, bool& out) const { return ReadAs(name, "true or false", out); }
  Status Read(std::string_view name, int64_t& out, int64_t low, int64_t high) const {
    XLA_GPU_RETURN_IF_ERROR(ReadAs(name, "an int", out));
    if (Find(name) == nullptr || (out >= low && out <= high)) return OkStatus();
    return InvalidArgument(Where(name), " is ", out, "; it must be ", low, " to ", high);
  }
  Status Read(std::string_view name, std::vector<std::string>& out) const {
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node> * items, Items(name));
    for (json::Node& item : *items) {
      XLA_GPU_ASSIGN_OR_RETURN(
          std::string * text,
          json::As<std::string>(StrCat(Where(name), "[", out.size(), "]"), item, "a string"));
      out.push_back(std::move(*text));
    }
    return OkStatus();
  }
  // The items of an array; none where the member is absent.
  StatusOr<std::vector<json::Node>*> Items(std::string_view name) const {
    static std::vector<json::Node> none;
    json::Node* node = Find(name);
    if (node == nullptr) return &none;
    XLA_GPU_ASSIGN_OR_RETURN(json::Array * array,
                             json::As<json::Array>(Where(name), *node, "an array"));
    return &array->items;
  }
  Status ReadDType(std::string_view name, DType& out) const {
    std::string text;
    XLA_GPU_RETURN_IF_ERROR(Read(name, text));
    if (text.empty()) return OkStatus();
    const auto dtype = DTypeFromName(text);
    if (!dtype) {
      return InvalidArgument(Where(name), " is \"", json::Excerpt(text), "\", which is no dtype");
    }
    out = *dtype;
    return OkStatus();
  }

 private:
  template <typename T>
  Status ReadAs(std::string_view name, std::string_view what, T& out) const {
    json::Node* node = Find(name);
    if (node == nullptr) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(T * value, json::As<T>(Where(name), *node, what));
    out = std::move(*value);
    return OkStatus();
  }

  std::string where_;
  std::vector<std::string_view> names_;
  std::vector<json::Node*> members_;
};

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_READER_H_
