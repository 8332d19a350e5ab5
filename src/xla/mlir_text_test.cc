#include "src/xla/mlir_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

TEST(MlirTextTest, FindsCustomCallsInBothForms) {
  const auto calls = FindMlirCustomCalls(R"(
    %0 = stablehlo.custom_call @a(%x, %y) {api_version = 4 : i32, backend_config = {s = "}"}} : ...
    %1 = stablehlo.custom_call @"b-2"(%x) : (tensor<f32>) -> tensor<f32>
    %2 = "stablehlo.custom_call"(%x) <{api_version = 3 : i32, call_target_name = "c"}> : ...
    %3 = "stablehlo.custom_call"(%x) {call_target_name = "d", has_side_effect = false} : ...
    %4 = stablehlo.custom_call @e(%x) {backend_config = "api", api_version=2 : i32} : ...)");
  ASSERT_EQ(calls.size(), 5u);
  const struct {
    const char* target;
    int api_version;
  } expected[] = {{"a", 4}, {"b-2", 1}, {"c", 3}, {"d", 1}, {"e", 2}};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(calls[i].target, expected[i].target);
    EXPECT_EQ(calls[i].api_version, expected[i].api_version) << calls[i].target;
  }
}

TEST(MlirTextTest, CommentsAndStringsMakeNoCalls) {
  const auto calls = FindMlirCustomCalls(R"mlir(
    // %0 = stablehlo.custom_call @comment(%x) : (tensor<f32>) -> tensor<f32>
    #set = affine_set<(d0) : (d0 - 1 >= 0, 5 <= d0)>
    %1 = "x.op"() {text = "custom_call @string()"} : () -> ()
    %2 = stablehlo.custom_call @a(%x) {backend_config = "custom_call @b()", api_version = 4 : i32})mlir");
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].target, "a");
  EXPECT_EQ(calls[0].api_version, 4);
}

// Each would take minutes if a text were read once for each of its calls.
TEST(MlirTextTest, TimeGrowsWithTheTextOnly) {
  const auto repeated = [](std::string_view part, size_t count, std::string_view end = "") {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += part;
    for (size_t i = 0; i < count; ++i) text += end;
    return text;
  };
  for (const char* part :
       {"custom_call @a(", "custom_call @a() {", "custom_call\"", "@main(", "custom_call @\"",
        "func @main(tensor<", "custom_call\"() <{", "<", ")"}) {
    for (const char* end : {"", ")", "}", ">"}) {
      const std::string text = repeated(part, 200'000, end);
      FindMlirCustomCalls(text);
      (void)MainArguments(text).ok();
    }
  }
  EXPECT_EQ(FindMlirCustomCalls(repeated("custom_call @a() {", 200'000, "}")).size(), 1u);
}

TEST(MlirTextTest, ReadsTheArgumentsOfMain) {
  const auto arguments = MainArguments(R"(module @jit_f {
    func.func private @helper(%a: tensor<7xf64>) -> tensor<7xf64>
    // as func.func @main(%a: tensor<9xf32>) does
    func.func @again(%a: tensor<8xf32>) { func.call @main(%a) : (tensor<8xf32>) -> tensor<i1> }
    func.func public @main (%arg0: tensor<2x3xbf16> {mhlo.layout = "tensor<9xi8>"},
        %arg1: tensor<ui8>, %arg2: tensor<4xf8E4M3FN, #enc<1>> loc("x")) -> (tensor<i1>) {)");
  ASSERT_TRUE(arguments.ok()) << arguments.status().ToString();
  ASSERT_EQ(arguments->size(), 3u);
  EXPECT_EQ((*arguments)[0].ToString(), "bf16[2,3]");
  EXPECT_EQ((*arguments)[1].ToString(), "u8[]");
  EXPECT_EQ((*arguments)[2].ToString(), "f8e4m3fn[4]");
}

TEST(MlirTextTest, TypesComeBack) {
  for (const char* type : {"tensor<f32>", "tensor<2x3xbf16>", "tensor<0xi1>", "tensor<5xui64>",
                           "tensor<1x1xf8E5M2>"}) {
    const std::string text = type;
    const auto spec = ParseMlirTensorType(text.substr(7, text.size() - 8));
    ASSERT_TRUE(spec.ok()) << spec.status().ToString();
    EXPECT_EQ(MlirTensorType(*spec), text);
  }
}

TEST(MlirTextTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(MainArguments("").status().message(), HasSubstr("no func.func @main"));
  EXPECT_THAT(MainArguments("func.func @main(%a: tensor<2xf32>").status().message(),
              HasSubstr("no func.func @main"));
  EXPECT_THAT(MainArguments("func.func @main(%a: tensor<?xf32>)").status().message(),
              HasSubstr("tensor<?xf32>"));
  EXPECT_THAT(MainArguments("func.func @main(%a: tensor<2xcomplex<f32>>)").status().message(),
              HasSubstr("complex"));
  EXPECT_THAT(ParseMlirTensorType("99999999999999999999xf32").status().message(),
              HasSubstr("no type"));
  EXPECT_EQ(MainArguments("func.func @main(%a: tensor<f32> loc(\"{\"), %b: tensor<i8>)")->size(),
            2u);
  for (const char* text :
       {"custom_call", "custom_call @", "custom_call @\"", "custom_call @a(", "custom_call @a() {",
        "\"x.custom_call\"", "\"x.custom_call\"(", "\"x.custom_call\"() {call_target_name = \""}) {
    FindMlirCustomCalls(text);  // must end, and not crash
  }
}

}  // namespace
}  // namespace xla_gpu::xla
