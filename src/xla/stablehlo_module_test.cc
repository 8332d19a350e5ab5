#include "src/xla/stablehlo_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/core/op_registry.h"
#include "src/core/test_util.h"
#include "src/xla/mlir_text.h"

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

TEST(StableHloModuleTest, WritesAttributesExactly) {
  EXPECT_EQ(MlirAttribute(true), "true");
  EXPECT_EQ(MlirAttribute(int64_t{-7}), "-7 : i64");
  EXPECT_EQ(MlirAttribute(0.5), "5.00000000000000000e-01 : f64");
  EXPECT_EQ(MlirAttribute(static_cast<double>(INFINITY)), "0x7FF0000000000000 : f64");
  EXPECT_EQ(MlirAttribute(std::string_view("a\"\\\n\xc3\xa9")), "\"a\\22\\5C\\0A\\C3\\A9\"");
  const int64_t ints[] = {1, -2};
  EXPECT_EQ(MlirAttribute(std::span<const int64_t>(ints)), "array<i64: 1, -2>");
  EXPECT_EQ(MlirAttribute(std::span<const int64_t>()), "array<i64>");
}

TEST(StableHloModuleTest, NumbersDoNotDependOnTheProgramsLocale) {
  const ScopedGermanLocale german;
  if (!german.made()) GTEST_SKIP() << "needs localedef and its sources (Debian: locales)";
  EXPECT_EQ(MlirAttribute(-0.1), "-1.00000000000000006e-01 : f64");
}

TEST(StableHloModuleTest, ChainsAndAliases) {
  const int64_t shape[] = {4};
  const TensorView a{nullptr, DType::kF32, shape};
  const TensorView args[] = {a, a};
  const Attributes none;
  const Op* add = *OpRegistry::Global().Get("simple_add");
  const auto module = StableHloModule(*add, Platform::kHost, Call{args, {}, &none}, 3);
  ASSERT_TRUE(module.ok()) << module.status().ToString();
  EXPECT_EQ(FindMlirCustomCalls(*module).size(), 3u);
  EXPECT_THAT(*module, HasSubstr("@XlaGpuSimpleAdd(%r1, %arg1)"));
  EXPECT_THAT(*module, HasSubstr("return %r2 : tensor<4xf32>"));

  const int64_t kv[] = {2, 1, 8}, cache[] = {3, 4, 2, 8}, slots[] = {2};
  const TensorView kv_args[] = {{nullptr, DType::kF32, kv},
                                {nullptr, DType::kF32, kv},
                                {nullptr, DType::kF32, cache},
                                {nullptr, DType::kI32, slots}};
  const Op* update = *OpRegistry::Global().Get("update_kv_cache");
  const auto in_place = StableHloModule(*update, Platform::kHost, Call{kv_args, {}, &none});
  ASSERT_TRUE(in_place.ok()) << in_place.status().ToString();
  EXPECT_THAT(*in_place, HasSubstr("output_tuple_indices = [], operand_index = 2"));
  EXPECT_THAT(
      StableHloModule(*update, Platform::kHost, Call{kv_args, {}, &none}, 2).status().message(),
      HasSubstr("cannot be chained"));
  EXPECT_FALSE(StableHloModule(*add, Platform::kHost, Call{kv_args, {}, &none}).ok());
}

}  // namespace
}  // namespace xla_gpu::xla
