// The codec of `opaque`, the text that a legacy custom call (API versions 1, 2, 3) carries.
//
// Legacy calls hand a handler bare pointers. Everything else about the call (op, types, attributes)
// travels as readable JSON, so that an HLO dump explains itself:
//
//   {"op":"simple_add","args":[{"dtype":"f32","shape":[3]},{"dtype":"f32","shape":[3]}],
//    "results":[{"dtype":"f32","shape":[3]}],"attrs":{}}
//
// An attribute is true/false (bool), 7 (int), 0.5 (float), "text" (string) or [1,2] (int array). A
// float is always written with a point or an exponent and read back to the same bits, so that 1.0
// stays a float and 1 an int. Strings are UTF-8; NUL and quotes are escaped.
#ifndef XLA_GPU_XLA_OPAQUE_H_
#define XLA_GPU_XLA_OPAQUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/core/call_frame.h"

namespace xla_gpu::xla {

// The bounds of a text that DecodeOpaque accepts, besides kMaxTensors and kMaxRank; EncodeOpaque
// writes no other.
inline constexpr size_t kMaxOpaqueBytes = size_t{1} << 20;
inline constexpr size_t kMaxOpaqueInts = 16384;  // values of all int arrays together

// One call without its data, owning its memory.
struct OpaqueCall {
  // The alternatives of AttrValue in the same order, each owning its value.
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
  struct Attr {
    std::string name;
    Value value;
    friend bool operator==(const Attr&, const Attr&) = default;
  };

  std::string op;  // name or custom-call target
  std::vector<TensorSpec> args;
  std::vector<TensorSpec> results;
  std::vector<Attr> attrs;

  friend bool operator==(const OpaqueCall&, const OpaqueCall&) = default;
};

// A copy of `call` (data pointers are not read).
OpaqueCall MakeOpaqueCall(std::string_view op, const Call& call);

// Views of the attributes; they point into `call`, which must outlive them.
StatusOr<Attributes> ViewAttributes(const OpaqueCall& call);
// Likewise of one list of tensors, without data.
std::vector<TensorView> ViewTensors(const std::vector<TensorSpec>& specs);

// Members in the order op, args, results, attrs; attributes in the order given. Fails where JSON
// cannot hold the call (a float that is not finite, a string that is not UTF-8) or DecodeOpaque
// would refuse it (too large, an attribute given twice, an unknown dtype, a bad dimension).
StatusOr<std::string> EncodeOpaque(const OpaqueCall& call);

// The inverse. Every member but `attrs` is required, members may come in any order, unknown ones
// are refused. A message names the member, what came and what is allowed.
StatusOr<OpaqueCall> DecodeOpaque(std::string_view text);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_OPAQUE_H_
