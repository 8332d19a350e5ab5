#include "src/xla/hlo_text.h"

#include <gtest/gtest.h>

namespace xla_gpu::xla {
namespace {

TEST(HloTextTest, ReadsTargetsVersionsTypesAndAliasing) {
  const auto calls = FindHloCustomCalls(
      "HloModule m\n"
      "ENTRY %main {\n"
      "  %a = f32[4]{0} parameter(0)\n"
      "  %c.1 = f32[4]{0} custom-call(%a), custom_call_target=\"X\"\n"
      "  %c.2 = (bf16[2,3]{1,0}, u8[16]{0}) custom-call(%a), custom_call_target=\"Y\", "
      "output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}, "
      "api_version=API_VERSION_TYPED_FFI, backend_config={s = \"api_version=API_VERSION_ORIGINAL "
      "custom_call_target=\\\"Z\\\"\"}\n"
      "  ROOT c.3 = f32[4]{0} custom-call(a), custom_call_target=\"X\", "
      "api_version=API_VERSION_STATUS_RETURNING_UNIFIED\n"
      "}\n");
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].name, "%c.1");
  EXPECT_EQ(calls[0].api_version, 1);
  EXPECT_EQ(calls[0].type, "f32[4]{0}");
  EXPECT_EQ(calls[0].aliasing, "");
  EXPECT_EQ(calls[1].target, "Y");
  EXPECT_EQ(calls[1].api_version, 4);
  EXPECT_EQ(calls[1].type, "(bf16[2,3]{1,0}, u8[16]{0})");
  EXPECT_EQ(calls[1].aliasing, "{0}: (0, {}), {1}: (1, {})");
  EXPECT_EQ(calls[2].name, "c.3");
  EXPECT_EQ(calls[2].api_version, 3);
}

TEST(HloTextTest, BadTextGivesNothing) {
  for (const char* text : {"", "\n", " = ", " = custom-call(", "x y = f32[] custom-call(",
                           "%a = f32[] add(%custom-call.1, %b)"}) {
    EXPECT_TRUE(FindHloCustomCalls(text).empty()) << text;
  }
  const auto cut = FindHloCustomCalls("%a = f32[] custom-call(%b), custom_call_target=\"x");
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0].target, "x");
}

}  // namespace
}  // namespace xla_gpu::xla
