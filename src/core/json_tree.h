// A JSON text as a tree, for texts that come from outside: bounded, and read strictly.
//
// Not nlohmann's own tree: it turns an integer of 30 digits into a float, keeps the last of two
// equal members, and allocates when it is destroyed (schema_json.cc).
#ifndef XLA_GPU_CORE_JSON_TREE_H_
#define XLA_GPU_CORE_JSON_TREE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::json {

struct Node;
struct Array {
  std::vector<Node> items;
};
struct Object {
  std::vector<Node> items;
};
using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object>;
struct Node {
  std::string name;  // of an object's member
  Value value;
};

struct Limits {
  size_t depth = 8;
  size_t nodes = size_t{64} * 1024;  // values in one text
  size_t members = 64;               // of one object
};

// The text as a tree. The error says what is wrong and where, in bytes.
StatusOr<Node> Parse(std::string_view text, const Limits& limits = {});

// What came, as a message shows it: short and printable, whatever was sent.
std::string Excerpt(std::string_view text, size_t max_size = 40);
// "the int 3", "an array of 2".
std::string Describe(const Node& node);

// "WHERE is the int 3; it must be WHAT".
Status MustBe(std::string_view where, const Node& node, std::string_view what);

// The members of an object in the order of `names`; null for one that is absent, which none of the
// first `num_required` may be. Others than these are an error.
StatusOr<std::vector<Node*>> Members(std::string_view where, Node& node,
                                     std::initializer_list<std::string_view> names,
                                     size_t num_required);

// The node's value as one of the alternatives, or MustBe(where, node, what).
template <typename T>
StatusOr<T*> As(std::string_view where, Node& node, std::string_view what) {
  if (T* value = std::get_if<T>(&node.value)) return value;
  return MustBe(where, node, what);
}

StatusOr<std::vector<int64_t>> Ints(std::string_view where, const Node& node);

}  // namespace xla_gpu::json

#endif  // XLA_GPU_CORE_JSON_TREE_H_
