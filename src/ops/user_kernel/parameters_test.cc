#include "src/ops/user_kernel/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::HasSubstr;

std::string Text(const std::string& aligned, const std::string& kind = "cuda_image") {
  return StrCat(R"({"name": "k", "arguments": [{"name": "x"}, {"name": "y"}],
      "results": [{"name": "out", "like": "x"}, {"name": "y", "alias_of": "y"}],
      "scalars": [{"name": "n", "type": "i32"}],
      "implementations": {"CUDA": {"kind": ")",
                kind, R"(", "image": "AAAA", "entry": "k", "library": "a.so", "symbol": "k",
      "parameters": ["x", "y", "out", "n", null], "aligned": )",
                aligned, "}}}");
}

TEST(ParametersTest, FindsWhatIsMisaligned) {
  const auto definition = ParseDefinition(Text(R"(["x", "out", "y"])"));
  ASSERT_TRUE(definition.ok()) << definition.status().message();
  alignas(16) std::array<char, 64> memory{};
  const std::array<int64_t, 1> shape = {4};
  const TensorView even{memory.data(), DType::kF32, shape};
  const TensorView odd{memory.data() + 4, DType::kF32, shape};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("n", int64_t{7}).ok());  // no address
  const auto first = [&](const TensorView& x, const TensorView& y, const TensorView& out) {
    const std::array args = {x, y};
    const std::array results = {out, y};
    const Call call{.args = args, .results = results, .attributes = &attributes};
    const ParameterPlan plan(**definition, *(*definition)->implementations[1], call);
    std::array<uint64_t, kMaxParameters> values;
    plan.Fill(call, nullptr, values);
    return plan.FindMisaligned(values);
  };
  EXPECT_EQ(first(even, even, even), std::nullopt);
  EXPECT_EQ(first(odd, even, even), 0);
  EXPECT_EQ(first(even, odd, odd), 1);
  EXPECT_EQ(first(even, even, odd), 2);
}

TEST(ParametersTest, AddressesAloneAreAligned) {
  for (const char* wrong : {R"(["n"])", R"(["x", "z"])", R"("x")", "[3]"}) {
    EXPECT_FALSE(ParseDefinition(Text(wrong)).ok()) << wrong;
  }
  EXPECT_THAT(ParseDefinition(Text(R"(["n"])")).status().message(),
              HasSubstr("aligned has \"n\", which is no address that a launched kernel takes"));
  EXPECT_FALSE(ParseDefinition(Text(R"(["x"])", "function")).ok());
}

}  // namespace
}  // namespace xla_gpu::user_kernel
