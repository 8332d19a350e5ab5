#include "src/core/dtype.h"

#include <gtest/gtest.h>

#include "src/core/tensor_view.h"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
namespace {

struct Row {
  DType dtype;
  int c_abi;
  const char* name;
  int64_t size;
};

constexpr Row kRows[] = {
    {DType::kPred, XLA_GPU_DTYPE_PRED, "pred", 1},
    {DType::kI8, XLA_GPU_DTYPE_I8, "i8", 1},
    {DType::kI16, XLA_GPU_DTYPE_I16, "i16", 2},
    {DType::kI32, XLA_GPU_DTYPE_I32, "i32", 4},
    {DType::kI64, XLA_GPU_DTYPE_I64, "i64", 8},
    {DType::kU8, XLA_GPU_DTYPE_U8, "u8", 1},
    {DType::kU16, XLA_GPU_DTYPE_U16, "u16", 2},
    {DType::kU32, XLA_GPU_DTYPE_U32, "u32", 4},
    {DType::kU64, XLA_GPU_DTYPE_U64, "u64", 8},
    {DType::kF16, XLA_GPU_DTYPE_F16, "f16", 2},
    {DType::kF32, XLA_GPU_DTYPE_F32, "f32", 4},
    {DType::kF64, XLA_GPU_DTYPE_F64, "f64", 8},
    {DType::kBF16, XLA_GPU_DTYPE_BF16, "bf16", 2},
    {DType::kF8E5M2, XLA_GPU_DTYPE_F8E5M2, "f8e5m2", 1},
    {DType::kF8E4M3FN, XLA_GPU_DTYPE_F8E4M3FN, "f8e4m3fn", 1},
};

TEST(DType, NamesSizesAndNumbersAgree) {
  for (const Row& row : kRows) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.c_abi) << row.name;
    EXPECT_EQ(DTypeName(row.dtype), row.name);
    EXPECT_EQ(DTypeSize(row.dtype), row.size) << row.name;
    EXPECT_EQ(DTypeFromName(row.name), row.dtype) << row.name;
    EXPECT_EQ(DTypeFromInt(row.c_abi), row.dtype) << row.name;
  }
}

TEST(DType, XlasOwnNamesAreRead) {
  EXPECT_EQ(DTypeFromName("s32"), DType::kI32);
  EXPECT_EQ(DTypeFromName("ui8"), DType::kU8);
  EXPECT_EQ(DTypeFromName("f8E4M3FN"), DType::kF8E4M3FN);
  EXPECT_EQ(DTypeFromName("i1"), DType::kPred);
}

TEST(DType, WhatIsUnknownIsInvalid) {
  EXPECT_EQ(DTypeFromName("f33"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
  for (int number : {-1, 0, 13, 15, 99, 1 << 30}) {
    EXPECT_EQ(DTypeFromInt(number), DType::kInvalid) << number;
  }
  EXPECT_EQ(DTypeSize(DType::kInvalid), 0);
  EXPECT_EQ(DTypeName(static_cast<DType>(77)), "invalid");
}

TEST(DType, Float) {
  for (const Row& row : kRows) {
    EXPECT_EQ(IsFloat(row.dtype), std::string_view(row.name).find('f') != std::string_view::npos);
  }
  EXPECT_FALSE(IsFloat(DType::kInvalid));
}

TEST(DType, Float8) {
  EXPECT_TRUE(IsFloat8(DType::kF8E4M3FN));
  EXPECT_TRUE(IsFloat8(DType::kF8E5M2));
  EXPECT_FALSE(IsFloat8(DType::kF16));
}

TEST(TensorView, CountsAndPrints) {
  const int64_t dims[] = {8, 32, 128};
  const TensorView view{nullptr, DType::kBF16, Shape(dims)};
  EXPECT_EQ(view.rank(), 3);
  EXPECT_EQ(view.dim(2), 128);
  EXPECT_EQ(view.num_elements(), 8 * 32 * 128);
  EXPECT_EQ(view.size_bytes(), 2 * 8 * 32 * 128);
  EXPECT_EQ(view.ToString(), "bf16[8,32,128]");
  const TensorView scalar{nullptr, DType::kF32, {}};
  EXPECT_EQ(scalar.num_elements(), 1);
  EXPECT_EQ(scalar.ToString(), "f32[]");
}

TEST(TensorSpec, MatchesDtypeAndShape) {
  const int64_t dims[] = {2, 3};
  const TensorView view{nullptr, DType::kF32, Shape(dims)};
  EXPECT_TRUE((TensorSpec{DType::kF32, {2, 3}}).Matches(view));
  EXPECT_FALSE((TensorSpec{DType::kF16, {2, 3}}).Matches(view));
  EXPECT_FALSE((TensorSpec{DType::kF32, {3, 2}}).Matches(view));
  EXPECT_FALSE((TensorSpec{DType::kF32, {2, 3, 1}}).Matches(view));
  EXPECT_FALSE((TensorSpec{DType::kF32, {2}}).Matches(view));
}

}  // namespace
}  // namespace xla_gpu
