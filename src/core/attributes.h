// Attributes: the named compile-time constants of one call, held without allocation.
//
// Names and strings point into the caller's memory (an XLA call frame, a parsed opaque text).
#ifndef XLA_GPU_CORE_ATTRIBUTES_H_
#define XLA_GPU_CORE_ATTRIBUTES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "src/core/status.h"

namespace xla_gpu {

using AttrValue = std::variant<bool, int64_t, double, std::string_view, std::span<const int64_t>>;

// The first are AttrValue's alternatives, in their order; a dtype is told by its name, a string.
enum class AttrType { kBool, kInt, kFloat, kString, kIntArray, kDType };

// As messages write it: "bool", "int", "float", "string", "int array", "dtype".
std::string_view AttrTypeName(AttrType type);
inline AttrType TypeOf(const AttrValue& value) { return static_cast<AttrType>(value.index()); }
std::string AttrToString(const AttrValue& value);

struct Attribute {
  std::string_view name;
  AttrValue value;
};

class Attributes {
 public:
  static constexpr int kMaxAttributes = 32;

  Attributes() {}  // NOLINT(modernize-use-equals-default): it would be deleted

  // Adds one attribute; an error if the name is taken or kMaxAttributes is reached.
  Status Add(std::string_view name, AttrValue value);

  // Takes one out, if it is there.
  void Remove(std::string_view name);

  std::span<const Attribute> all() const { return {items_, size_}; }
  const AttrValue* Find(std::string_view name) const;

  // The attribute's value, or `fallback` where it is absent (an op's own calls are complete, see
  // CompleteAttributes). A value of another type was already refused against the op's schema; an
  // int stands for a float.
  bool GetBool(std::string_view name, bool fallback = false) const;
  int64_t GetInt(std::string_view name, int64_t fallback = 0) const;
  double GetFloat(std::string_view name, double fallback = 0) const;
  std::string_view GetString(std::string_view name, std::string_view fallback = "") const;

 private:
  union {  // made by Add: clearing all would cost each call its time
    Attribute items_[kMaxAttributes];
  };
  size_t size_ = 0;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_ATTRIBUTES_H_
