#include "src/core/dtype.h"

#include <array>

namespace xla_gpu {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::string_view xla_name;
  int64_t size;
};

constexpr std::array kDTypes = {
    DTypeInfo{DType::kPred, "pred", "i1", 1},
    DTypeInfo{DType::kI8, "i8", "s8", 1},
    DTypeInfo{DType::kI16, "i16", "s16", 2},
    DTypeInfo{DType::kI32, "i32", "s32", 4},
    DTypeInfo{DType::kI64, "i64", "s64", 8},
    DTypeInfo{DType::kU8, "u8", "ui8", 1},
    DTypeInfo{DType::kU16, "u16", "ui16", 2},
    DTypeInfo{DType::kU32, "u32", "ui32", 4},
    DTypeInfo{DType::kU64, "u64", "ui64", 8},
    DTypeInfo{DType::kF16, "f16", "f16", 2},
    DTypeInfo{DType::kF32, "f32", "f32", 4},
    DTypeInfo{DType::kF64, "f64", "f64", 8},
    DTypeInfo{DType::kBF16, "bf16", "bf16", 2},
    DTypeInfo{DType::kF8E5M2, "f8e5m2", "f8E5M2", 1},
    DTypeInfo{DType::kF8E4M3FN, "f8e4m3fn", "f8E4M3FN", 1},
};

// By the dtype's number, because every call asks.
constexpr auto kByNumber = [] {
  std::array<const DTypeInfo*, 32> table{};
  for (const DTypeInfo& info : kDTypes) table[static_cast<size_t>(info.dtype)] = &info;
  return table;
}();

const DTypeInfo* Find(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  return number < kByNumber.size() ? kByNumber[number] : nullptr;
}

}  // namespace

int64_t DTypeSize(DType dtype) {
  const DTypeInfo* info = Find(dtype);
  return info == nullptr ? 0 : info->size;
}

std::string_view DTypeName(DType dtype) {
  const DTypeInfo* info = Find(dtype);
  return info == nullptr ? "invalid" : info->name;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name || info.xla_name == name) return info.dtype;
  }
  return std::nullopt;
}

DType DTypeFromInt(int32_t value) {
  const DTypeInfo* info = Find(static_cast<DType>(value));
  return info == nullptr ? DType::kInvalid : info->dtype;
}

}  // namespace xla_gpu
