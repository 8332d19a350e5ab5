// Element types: one table of all that the library says about them.
#ifndef XLA_GPU_CORE_DTYPE_H_
#define XLA_GPU_CORE_DTYPE_H_

#include <array>
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

// DLPack's type codes; a type's bits are those of its size.
enum DlpackCode : uint8_t {
  kDlpackInt = 0,
  kDlpackUInt = 1,
  kDlpackFloat = 2,
  kDlpackBfloat = 4,
  kDlpackBool = 6,
  kDlpackFloat8E4M3FN = 10,
  kDlpackFloat8E5M2 = 12,
  kDlpackNone = 255
};

struct DTypeInfo {
  DType dtype = DType::kInvalid;
  DlpackCode dlpack = kDlpackNone;
  int64_t size = 0;                   // bytes of one element
  std::string_view name = "invalid";  // ours: f32, bf16, i32
  std::string_view mlir = {};         // in StableHLO
  std::string_view hlo = {};          // in HLO
  int pjrt = 0;                       // PJRT_Buffer_Type
  std::string_view device = {};       // in device code (src/cuda/numeric.cuh), where it has one
};

// By the dtype's number, because every call asks. What is no dtype has kInvalid.
inline constexpr auto kDTypes = [] {
  using enum DType;
  constexpr DTypeInfo kRows[] = {
      {kPred, kDlpackBool, 1, "pred", "i1", "pred", 1},
      {kI8, kDlpackInt, 1, "i8", "i8", "s8", 2},
      {kI16, kDlpackInt, 2, "i16", "i16", "s16", 3},
      {kI32, kDlpackInt, 4, "i32", "i32", "s32", 4},
      {kI64, kDlpackInt, 8, "i64", "i64", "s64", 5},
      {kU8, kDlpackUInt, 1, "u8", "ui8", "u8", 6},
      {kU16, kDlpackUInt, 2, "u16", "ui16", "u16", 7},
      {kU32, kDlpackUInt, 4, "u32", "ui32", "u32", 8},
      {kU64, kDlpackUInt, 8, "u64", "ui64", "u64", 9},
      {kF16, kDlpackFloat, 2, "f16", "f16", "f16", 10, "F16"},
      {kF32, kDlpackFloat, 4, "f32", "f32", "f32", 11, "float"},
      {kF64, kDlpackFloat, 8, "f64", "f64", "f64", 12},
      {kBF16, kDlpackBfloat, 2, "bf16", "bf16", "bf16", 13, "BF16"},
      {kF8E5M2, kDlpackFloat8E5M2, 1, "f8e5m2", "f8E5M2", "f8e5m2", 16, "E5M2"},
      {kF8E4M3FN, kDlpackFloat8E4M3FN, 1, "f8e4m3fn", "f8E4M3FN", "f8e4m3fn", 17, "E4M3"},
  };
  std::array<DTypeInfo, 32> table{};
  for (const DTypeInfo& row : kRows) table[static_cast<size_t>(row.dtype)] = row;
  return table;
}();

constexpr const DTypeInfo& InfoOf(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  return kDTypes[number < kDTypes.size() ? number : 0];
}

// Bytes of one element; 0 for kInvalid and values outside the enumeration.
constexpr int64_t DTypeSize(DType dtype) { return InfoOf(dtype).size; }

// "f32", "bf16", "f8e4m3fn", ...; "invalid" for anything else.
constexpr std::string_view DTypeName(DType dtype) { return InfoOf(dtype).name; }

// The value as a DType if it is one that this library knows, else kInvalid.
constexpr DType DTypeFromInt(int32_t value) { return InfoOf(static_cast<DType>(value)).dtype; }

// The dtype of which `is_it(info)` is true.
template <typename Predicate>
constexpr std::optional<DType> FindDType(const Predicate& is_it) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype != DType::kInvalid && is_it(info)) return info.dtype;
  }
  return std::nullopt;
}

// The inverse of DTypeName; also accepts XLA's names ("s32" and "ui8" for "i32" and "u8").
constexpr std::optional<DType> DTypeFromName(std::string_view name) {
  return FindDType([name](const DTypeInfo& info) {
    return name == info.name || name == info.mlir || name == info.hlo;
  });
}

// Every float type here has a NaN of all bits set.
constexpr bool IsFloat(DType dtype) {
  const DlpackCode code = InfoOf(dtype).dlpack;
  return code != kDlpackInt && code != kDlpackUInt && code != kDlpackBool && code != kDlpackNone;
}

constexpr bool IsFloat8(DType dtype) { return IsFloat(dtype) && DTypeSize(dtype) == 1; }

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_DTYPE_H_
