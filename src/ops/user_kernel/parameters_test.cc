#include "src/ops/user_kernel/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NumberBits, AreThoseOfTheType) {
  const struct {
    DType type;
    AttrValue value;
    uint64_t bits;
  } cases[] = {{DType::kPred, true, 1},
               {DType::kPred, int64_t{7}, 1},
               {DType::kI8, int64_t{-1}, 0xff},
               {DType::kU8, int64_t{255}, 0xff},
               {DType::kI16, int64_t{-2}, 0xfffe},
               {DType::kI32, int64_t{-3}, 0xfffffffd},
               {DType::kI32, true, 1},
               {DType::kI64, int64_t{-4}, 0xfffffffffffffffc},
               {DType::kU64, std::numeric_limits<int64_t>::max(), 0x7fffffffffffffff},
               {DType::kF64, 1.0, 0x3ff0000000000000},
               {DType::kF32, 0.1, 0x3dcccccd},
               {DType::kF32, int64_t{2}, 0x40000000},
               {DType::kF32, 1e300, 0x7f800000},
               {DType::kF16, 1.0, 0x3c00},
               {DType::kF16, 1.0 + 0x1p-11, 0x3c00},  // to even
               {DType::kBF16, -2.0, 0xc000},
               {DType::kBF16, true, 0x3f80}};
  for (const auto& c : cases) {
    EXPECT_EQ(NumberBits(c.type, c.value), c.bits) << DTypeName(c.type) << AttrToString(c.value);
  }
}

TEST(Fits, TheRangeOfTheType) {
  const auto bounds = [](DType type, int64_t low, int64_t high) {
    EXPECT_TRUE(Fits(type, low) && Fits(type, high)) << DTypeName(type);
    EXPECT_TRUE(low == std::numeric_limits<int64_t>::min() || !Fits(type, low - 1));
    EXPECT_TRUE(high == std::numeric_limits<int64_t>::max() || !Fits(type, high + 1));
  };
  bounds(DType::kPred, 0, 1);
  bounds(DType::kI8, -128, 127);
  bounds(DType::kI16, -32768, 32767);
  bounds(DType::kI32, -2147483648ll, 2147483647);
  bounds(DType::kU8, 0, 255);
  bounds(DType::kU16, 0, 65535);
  bounds(DType::kU32, 0, 4294967295);
  bounds(DType::kI64, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  bounds(DType::kU64, 0, std::numeric_limits<int64_t>::max());
}

// A definition of the members, JSON with ' for ", whose Host implementation takes `parameters`.
std::shared_ptr<const Definition> Define(std::string_view parameters) {
  std::string json(StrCat(
      "{'name': 'k', 'workspace': true, 'arguments': [{'name': 'x'}, {'name': 'p', 'optional': "
      "true}, {'name': 'q', 'optional': true}], 'results': [{'name': 'x', 'alias_of': 'x'}, "
      "{'name': 'out'}], 'scalars': [{'name': 'i', 'type': 'i8', 'default': 5}, {'name': 'f', "
      "'type': 'f32'}], 'implementations': {'Host': {'kind': 'function', 'address': 1, "
      "'parameters': [",
      parameters, "]}}}"));
  for (char& c : json) {
    if (c == '\'') c = '"';
  }
  auto definition = ParseDefinition(json);
  EXPECT_TRUE(definition.ok()) << definition.status().ToString();
  return *definition;
}

const Implementation& HostOf(const Definition& definition) {
  return *definition.implementations[static_cast<size_t>(Platform::kHost)];
}

class ParametersTest : public testing::Test {
 protected:
  static void* Address(uint64_t number) { return reinterpret_cast<void*>(number); }

  // The values of a call that brings `optional` and a workspace if `workspace`.
  std::vector<uint64_t> Values(std::string_view parameters, std::string_view optional,
                               bool workspace = false) {
    const auto definition = Define(parameters);
    Attributes attributes;
    EXPECT_TRUE(attributes.Add("i", AttrValue(int64_t{-1})).ok());
    EXPECT_TRUE(attributes.Add("f", AttrValue(2.0)).ok());
    if (!optional.empty()) {
      EXPECT_TRUE(attributes.Add(kOptionalArgsAttribute, AttrValue(optional)).ok());
    }
    const std::vector<int64_t> shape = {2, 3};
    std::vector<TensorView> args = {{Address(100), DType::kF32, shape}};
    if (!optional.empty()) args.push_back({Address(200), DType::kF32, shape});
    if (optional.find(',') != optional.npos) args.push_back({Address(300), DType::kF32, shape});
    std::vector<TensorView> results = {{Address(100), DType::kF32, shape},
                                       {Address(400), DType::kF32, shape}};
    if (workspace) results.push_back({Address(500), DType::kU8, shape});
    const Call call{args, results, &attributes};
    const ParameterPlan plan(*definition, HostOf(*definition), call);
    std::vector<uint64_t> values(plan.size());
    plan.Fill(call, Address(99), values);
    return values;
  }
};

TEST_F(ParametersTest, NamesAreAddressesAndNumbers) {
  EXPECT_THAT(Values("'x', 'out', 'i', 'f', 'stream', null", ""),
              testing::ElementsAre(100, 400, 0xff, 0x40000000, 99, 0));
}

TEST_F(ParametersTest, OptionalArgumentsAreNullWhereTheyAreAbsent) {
  const std::string_view all = "'q', 'p', 'x'";
  EXPECT_THAT(Values(all, ""), testing::ElementsAre(0, 0, 100));
  EXPECT_THAT(Values(all, "p"), testing::ElementsAre(0, 200, 100));
  EXPECT_THAT(Values(all, "q"), testing::ElementsAre(200, 0, 100));
  EXPECT_THAT(Values(all, "p,q"), testing::ElementsAre(300, 200, 100));
}

TEST_F(ParametersTest, TheWorkspaceIsTheCallsLastResult) {
  EXPECT_THAT(Values("'workspace'", "", true), testing::ElementsAre(500));
  EXPECT_THAT(Values("'workspace'", "", false), testing::ElementsAre(0));
}

TEST_F(ParametersTest, NumbersOfTheArguments) {
  const std::string_view all =
      "{'elements_of': 'x', 'type': 'i64'}, {'dim_of': 'x', 'dim': 1, 'type': 'u8'}, "
      "{'elements_of': 'q', 'type': 'f32'}, {'value': -1, 'type': 'i16'}";
  EXPECT_THAT(Values(all, ""), testing::ElementsAre(6, 3, 0, 0xffff));
  EXPECT_THAT(Values(all, "q"), testing::ElementsAre(6, 3, 0x40c00000, 0xffff));
}

TEST(Fits, WhatStaysFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const struct {
    DType type;
    double fits, does_not;
    const char* range;
  } cases[] = {
      {DType::kF16, 65519, 65520, "-65504 to 65504, inf and nan"},
      {DType::kBF16, 3.39e38, 3.4e38, "-3.38953e+38 to 3.38953e+38, inf and nan"},
      {DType::kF32, 3.4028235e38, 3.4028236e38, "-3.40282e+38 to 3.40282e+38, inf and nan"},
      {DType::kF64, 1e308, kInf, "-1.79769e+308 to 1.79769e+308, inf and nan"},
  };
  for (const auto& c : cases) {
    for (const double value : {c.fits, 0.0, kInf, std::nan("")}) {
      EXPECT_TRUE(Fits(c.type, value) && Fits(c.type, -value)) << c.range << " " << value;
    }
    EXPECT_EQ(Fits(c.type, c.does_not), std::isinf(c.does_not)) << c.range;
    EXPECT_EQ(RangeOf(c.type), c.range);
  }
  EXPECT_EQ(RangeOf(DType::kU16), "0 to 65535");
  EXPECT_EQ(RangeOf(DType::kI64), "-9223372036854775808 to 9223372036854775807");
}

TEST(CheckScalars, NamesTheOneThatDoesNotFit) {
  const auto definition = Define("");
  const auto check = [&](int64_t value) {
    Attributes attributes;
    EXPECT_TRUE(attributes.Add("i", AttrValue(value)).ok());
    return CheckScalars(*definition, attributes);
  };
  EXPECT_TRUE(check(-128).ok() && check(127).ok());
  EXPECT_EQ(check(128).message(),
            "k: i is 128, which its type i8 does not hold; allowed are -128 to 127");
  EXPECT_TRUE(CheckScalars(*definition, Attributes()).ok());
}

TEST(CheckParameters, NamesWhatTheKernelCannotTake) {
  const auto check = [](std::string_view parameters, DType points_to, const TensorSpec& x,
                        const TensorSpec& out) {
    const auto definition = Define(parameters);
    Implementation implementation = HostOf(*definition);
    for (Parameter& parameter : implementation.parameters) parameter.points_to = points_to;
    const TensorView view{nullptr, x.dtype, x.shape};
    const std::array<const TensorView*, 3> args = {&view, nullptr, nullptr};
    const std::array<TensorSpec, 2> results = {x, out};
    return CheckParameters(*definition, implementation, args, results).message();
  };
  const TensorSpec f32{DType::kF32, {2, 300}}, bf16{DType::kBF16, {2}};
  EXPECT_EQ(check("'x', 'out', 'p', null", DType::kInvalid, f32, bf16), "");
  EXPECT_EQ(check("'x'", DType::kF32, f32, bf16), "");
  EXPECT_EQ(check("'out'", DType::kU16, f32, bf16), "");
  EXPECT_EQ(check("'x'", DType::kF64, f32, bf16),
            "k: x is f32[2,300], but the source text has a pointer to f64");
  EXPECT_EQ(check("'out'", DType::kF32, f32, bf16),
            "k: out is bf16[2], but the source text has a pointer to f32");
  EXPECT_NE(check("'out'", DType::kI16, f32, bf16), "");
  EXPECT_NE(check("'x'", DType::kU32, f32, bf16), "");
  EXPECT_EQ(check("{'dim_of': 'x', 'dim': 0, 'type': 'i8'}", DType::kInvalid, f32, bf16), "");
  EXPECT_EQ(check("{'dim_of': 'x', 'dim': 1, 'type': 'u8'}", DType::kInvalid, f32, bf16),
            "k: x is f32[2,300]; its dimension 1 does not fit the kernel's parameter, of type u8");
  EXPECT_EQ(check("{'dim_of': 'x', 'dim': 2, 'type': 'i64'}", DType::kInvalid, f32, bf16),
            "k: x is f32[2,300], but the kernel takes its dimension 2");
  EXPECT_THAT(check("{'elements_of': 'x', 'type': 'i8'}", DType::kInvalid, f32, bf16),
              HasSubstr("its number of elements does not fit"));
  EXPECT_EQ(check("{'elements_of': 'p', 'type': 'i8'}", DType::kInvalid, f32, bf16), "");
}

TEST(CheckParameters, ATypeOfTheTemplateIsOneType) {
  std::string text =
      R"({"name": "k", "arguments": [{"name": "x"}, {"name": "p", "optional": true}],
      "results": [{"name": "out"}], "implementations": {"Host": {"kind": "host_source", "text": ")"
      R"(template <class T> void k(const T* x, const T* p, T* out) {}", "entry": "k<float>"}}})";
  const auto definition = ParseDefinition(text);
  ASSERT_TRUE(definition.ok()) << definition.status().ToString();
  const auto check = [&](DType x, DType p, DType out) {
    const std::vector<int64_t> shape = {2};
    const TensorView x_view{nullptr, x, shape}, p_view{nullptr, p, shape};
    const std::array<const TensorView*, 2> args = {&x_view,
                                                   p == DType::kInvalid ? nullptr : &p_view};
    const std::array<TensorSpec, 1> results = {TensorSpec{out, {2}}};
    return CheckParameters(**definition, HostOf(**definition), args, results).message();
  };
  using enum DType;
  EXPECT_EQ(check(kF32, kF32, kF32), "");
  EXPECT_EQ(check(kF32, kInvalid, kF32), "");
  EXPECT_EQ(check(kU16, kBF16, kU16), "");  // the same bits
  EXPECT_EQ(check(kF32, kBF16, kF32),
            "k: x is f32[2] but p is bf16[2]; the source text has pointers to one type of its "
            "template there");
  EXPECT_THAT(check(kF32, kInvalid, kF64), HasSubstr("x is f32[2] but out is f64[2]"));
}

// ---- Alignment ------------------------------------------------------------------------------

std::string AlignedText(const std::string& aligned, const std::string& kind = "cuda_image") {
  return StrCat(R"({"name": "k", "arguments": [{"name": "x"}, {"name": "y"}],
      "results": [{"name": "out", "like": "x"}, {"name": "y", "alias_of": "y"}],
      "scalars": [{"name": "n", "type": "i32"}],
      "implementations": {"CUDA": {"kind": ")",
                kind, R"(", "image": "AAAA", "entry": "k",
      "parameters": ["x", "y", "out", "n", null], "aligned": )",
                aligned, "}}}");
}

TEST(Alignment, FindsWhatIsMisaligned) {
  const auto definition = ParseDefinition(AlignedText(R"(["x", "out", "y"])"));
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

// What a CUDA source says itself; one for the CPU may go where it likes.
TEST(Alignment, OfPointersToVectors) {
  const auto definition =
      ParseDefinition(R"_({"name": "k", "results": [{"name": "out", "like": "a"}],
      "implementations": {"CUDA": {"kind": "cuda_source", "entry": "k", "text":
      "void k(const float4* a, float2* b, const __half2* c, double2* d, float3* e, uchar4* f, float* out)"},
      "Host": {"kind": "host_source", "entry": "k", "text":
      "void k(const float4* a, float2* b, half2* c, double2* d, float3* e, uchar4* f, float* out)"}}})_");
  ASSERT_TRUE(definition.ok()) << definition.status().message();
  const auto alignments = [&](Platform platform) {
    std::vector<uint64_t> found;
    const auto& made = (*definition)->implementations[static_cast<size_t>(platform)];
    for (const Parameter& parameter : made->parameters) found.push_back(parameter.alignment);
    return found;
  };
  EXPECT_THAT(alignments(Platform::kCuda), ElementsAre(16, 8, 4, 16, 1, 4, 1));
  EXPECT_THAT(alignments(Platform::kHost), ElementsAre(1, 1, 1, 1, 1, 1, 1));
}

TEST(Alignment, AddressesAloneAreAligned) {
  for (const char* wrong : {R"(["n"])", R"(["x", "z"])", R"("x")", "[3]"}) {
    EXPECT_FALSE(ParseDefinition(AlignedText(wrong)).ok()) << wrong;
  }
  EXPECT_THAT(ParseDefinition(AlignedText(R"(["n"])")).status().message(),
              HasSubstr("aligned has \"n\", which is no address that a launched kernel takes"));
  EXPECT_FALSE(ParseDefinition(AlignedText(R"(["x"])", "function")).ok());
}

}  // namespace
}  // namespace xla_gpu::user_kernel
