// A JSON text as a tree, for texts that come from outside: bounded, and read strictly.
//
// Not nlohmann's own tree: it turns an integer of 30 digits into a float, keeps the last of two
// equal members, and allocates when it is destroyed (schema_json.cc).
#ifndef XLA_GPU_CORE_JSON_TREE_H_
#define XLA_GPU_CORE_JSON_TREE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/core/dtype.h"
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

// The node's value as one of the alternatives, or MustBe(where, node, what).
template <typename T>
StatusOr<T*> As(std::string_view where, Node& node, std::string_view what) {
  if (T* value = std::get_if<T>(&node.value)) return value;
  return MustBe(where, node, what);
}

// Reads the members of one object by their names and types. What is absent leaves `out` as it is;
// a member of another type is MustBe. Texts are moved out of the tree. The tree outlives it.
class Reader {
 public:
  // An error unless `node` is an object whose members are some of `names`, with all of the first
  // `num_required`. `where`: the object's path, which its members' begin with; "the call", a name
  // with a space, is none.
  static StatusOr<Reader> Open(std::string where, Node& node, std::vector<std::string_view> names,
                               size_t num_required);

  // Null where the member is absent, or none of Open's.
  Node* Find(std::string_view name) const;
  std::string Where(std::string_view name) const;  // "results[0].like"

  Status Read(std::string_view name, std::string& out) const;
  Status Read(std::string_view name, bool& out) const;
  Status Read(std::string_view name, int64_t& out, int64_t low, int64_t high) const;
  Status Read(std::string_view name, std::vector<int64_t>& out) const;
  Status Read(std::string_view name, std::vector<std::string>& out) const;
  Status Read(std::string_view name, DType& out) const;  // by its name
  // The items of an array, members of an object; none where it is absent.
  StatusOr<std::vector<Node>*> Items(std::string_view name,
                                     std::string_view what = "an array") const;
  StatusOr<std::vector<Node>*> Members(std::string_view name) const;

 private:
  template <typename T>
  Status ReadAs(std::string_view name, std::string_view what, T& out) const;
  template <typename List>
  StatusOr<std::vector<Node>*> ListOf(std::string_view name, std::string_view what) const;

  std::string path_;
  std::vector<std::string_view> names_;
  std::vector<Node*> members_;  // in the order of names_
};

// `text` as a dtype; the error lists them.
StatusOr<DType> DTypeOf(std::string_view where, std::string_view text);

StatusOr<std::vector<int64_t>> Ints(std::string_view where, const Node& node);

}  // namespace xla_gpu::json

#endif  // XLA_GPU_CORE_JSON_TREE_H_
