// Element types. The names are those of StableHLO with a sign letter as in numpy: f32, bf16, i32.
#ifndef XLA_GPU_CORE_DTYPE_H_
#define XLA_GPU_CORE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace xla_gpu {

// The values are part of the C ABI (XLA_GPU_DTYPE_*) and equal xla::PrimitiveType where both exist.
enum class DType : int32_t {
  kInvalid = 0,
  kPred = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};

// Bytes of one element; 0 for kInvalid and values outside the enumeration.
int64_t DTypeSize(DType dtype);
// "f32", "bf16", "f8e4m3fn", ...; "invalid" for anything else.
std::string_view DTypeName(DType dtype);
// The inverse of DTypeName; also accepts XLA's "s32" for "i32".
std::optional<DType> DTypeFromName(std::string_view name);
// The value as a DType if it is one that this library knows, else kInvalid.
DType DTypeFromInt(int32_t value);

constexpr bool IsFloat8(DType dtype) {
  return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2;
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_DTYPE_H_
