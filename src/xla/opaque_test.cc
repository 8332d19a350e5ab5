#include "src/xla/opaque.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

constexpr const char* kAdd =
    R"({"op":"simple_add","args":[{"dtype":"f32","shape":[3]},{"dtype":"f32","shape":[3]}],)"
    R"("results":[{"dtype":"f32","shape":[3]}],"attrs":{}})";

TEST(Opaque, EncodesTheDocumentedText) {
  OpaqueCall call{"simple_add", {{DType::kF32, {3}}, {DType::kF32, {3}}}, {{DType::kF32, {3}}}, {}};
  auto text = EncodeOpaque(call);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(*text, kAdd);
  auto decoded = DecodeOpaque(kAdd);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, call);
}

TEST(Opaque, EncodesEveryKindOfAttribute) {
  OpaqueCall call;
  call.op = "x";
  call.attrs = {{"causal", true},
                {"window", int64_t{7}},
                {"scale", 0.5},
                {"one", 1.0},
                {"minus_zero", -0.0},
                {"huge", 1e300},
                {"text", std::string("a\"b\\c\n\0d\xc3\xa9", 10)},
                {"ints", std::vector<int64_t>{1, -2}},
                {"none", std::vector<int64_t>{}}};
  auto text = EncodeOpaque(call);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(*text,
            "{\"op\":\"x\",\"args\":[],\"results\":[],\"attrs\":{\"causal\":true,\"window\":7,"
            "\"scale\":0.5,\"one\":1.0,\"minus_zero\":-0.0,\"huge\":1e+300,"
            "\"text\":\"a\\\"b\\\\c\\n\\u0000d\xc3\xa9\",\"ints\":[1,-2],\"none\":[]}}");
  EXPECT_EQ(text->find('\0'), std::string::npos) << "XLA may cut the text at a NUL";
  auto decoded = DecodeOpaque(*text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, call);
  EXPECT_TRUE(std::signbit(std::get<double>(decoded->attrs[4].value)));
}

TEST(Opaque, ReadsTextsWrittenByHand) {
  auto decoded = DecodeOpaque(R"( { "results": [ ], "attrs" : { "scale" : 1e0, "n": -1 },
      "args": [ {"shape": [ 2, 0 ], "dtype": "s32"} ], "op": "XlaGpuSimpleAdd" } )");
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->op, "XlaGpuSimpleAdd");
  EXPECT_EQ(decoded->args, (std::vector<TensorSpec>{{DType::kI32, {2, 0}}}));
  EXPECT_EQ(std::get<double>(decoded->attrs[0].value), 1.0);
  EXPECT_EQ(std::get<int64_t>(decoded->attrs[1].value), -1);
  EXPECT_TRUE(DecodeOpaque(R"({"op":"x","args":[],"results":[]})").ok()) << "attrs may be absent";
}

TEST(Opaque, CopiesACallAndViewsItAgain) {
  const std::vector<int64_t> shape = {2, 3};
  const std::vector<int64_t> ints = {4, 5};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("b", true).ok());
  ASSERT_TRUE(attributes.Add("s", std::string_view("text")).ok());
  ASSERT_TRUE(attributes.Add("a", std::span<const int64_t>(ints)).ok());
  const std::vector<TensorView> args = {{nullptr, DType::kBF16, shape}};
  const OpaqueCall copy = MakeOpaqueCall("x", Call{args, {}, &attributes});
  EXPECT_EQ(copy.args, (std::vector<TensorSpec>{{DType::kBF16, shape}}));
  auto views = ViewAttributes(copy);
  ASSERT_TRUE(views.ok());
  EXPECT_TRUE(views->GetBool("b", false));
  EXPECT_EQ(views->GetString("s", ""), "text");
  EXPECT_EQ(std::get<std::span<const int64_t>>(*views->Find("a"))[1], 5);
}

// ---- Property: what was encoded decodes to the same call, bit for bit.
// ---------------------------

class RandomCalls {
 public:
  explicit RandomCalls(uint64_t seed) : random_(seed) {}

  OpaqueCall Next() {
    OpaqueCall call;
    call.op = Text();
    for (uint64_t n = Below(5); n > 0; --n) call.args.push_back(Spec());
    for (uint64_t n = Below(4); n > 0; --n) call.results.push_back(Spec());
    for (uint64_t n = Below(9); n > 0; --n) {
      call.attrs.push_back({StrCat(Text(), n), Value()});  // n: no name twice
    }
    return call;
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  std::string Text() {
    static constexpr std::string_view kPieces[] = {"a",
                                                   "scale",
                                                   "\"",
                                                   "\\",
                                                   "\n",
                                                   "/",
                                                   "{",
                                                   std::string_view("\0", 1),
                                                   "\x7f",
                                                   "\x01",
                                                   " ",
                                                   "\xc3\xa9",
                                                   "\xe2\x82\xac",
                                                   "\xf0\x9f\x98\x80",
                                                   "<",
                                                   "\xed\x9f\xbf"};
    std::string text;
    for (uint64_t n = Below(8); n > 0; --n) text += kPieces[Below(std::size(kPieces))];
    return text;
  }

  TensorSpec Spec() {
    static constexpr DType kDTypes[] = {DType::kPred, DType::kI8,  DType::kU64,    DType::kF16,
                                        DType::kBF16, DType::kF64, DType::kF8E5M2, DType::kF8E4M3FN,
                                        DType::kI32,  DType::kU32};
    TensorSpec spec{kDTypes[Below(std::size(kDTypes))], {}};
    for (uint64_t n = Below(6); n > 0; --n) spec.shape.push_back(static_cast<int64_t>(Below(1000)));
    return spec;
  }

  double FiniteDouble() {
    for (;;) {
      const uint64_t bits = random_();
      // f32 values widened, as an f32 attribute arrives, and any double.
      const double value = Below(2) == 0 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                         : std::bit_cast<double>(bits);
      if (std::isfinite(value)) return Below(8) == 0 ? std::trunc(std::fmod(value, 1e6)) : value;
    }
  }

  OpaqueCall::Value Value() {
    switch (Below(5)) {
      case 0:
        return Below(2) == 0;
      case 1:
        return static_cast<int64_t>(random_());
      case 2:
        return FiniteDouble();
      case 3:
        return Text();
      default: {
        std::vector<int64_t> ints(Below(6));
        for (int64_t& v : ints) v = static_cast<int64_t>(random_() >> Below(64));
        return ints;
      }
    }
  }

  std::mt19937_64 random_;
};

TEST(Opaque, RandomCallsRoundTrip) {
  RandomCalls calls(20240611);
  for (int i = 0; i < 20000; ++i) {
    const OpaqueCall call = calls.Next();
    auto text = EncodeOpaque(call);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    auto decoded = DecodeOpaque(*text);
    ASSERT_TRUE(decoded.ok()) << *text << "\n" << decoded.status().ToString();
    ASSERT_EQ(*decoded, call) << *text;
    for (size_t a = 0; a < call.attrs.size(); ++a) {  // == does not tell -0.0 from 0.0
      if (const auto* number = std::get_if<double>(&call.attrs[a].value)) {
        ASSERT_EQ(std::bit_cast<uint64_t>(*number),
                  std::bit_cast<uint64_t>(std::get<double>(decoded->attrs[a].value)));
      }
    }
    ASSERT_EQ(*EncodeOpaque(*decoded), *text) << "the order of members must be stable";
  }
}

TEST(Opaque, CutTextsAreErrors) {
  const std::string text = kAdd;
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_FALSE(DecodeOpaque(std::string_view(text).substr(0, n)).ok()) << n;
  }
}

// ---- Bad texts: each row is refused with a message that says what is wrong.
// ----------------------

std::string With(std::string_view member, std::string_view value) {
  std::string text = "{";
  for (std::string_view name : {"op", "args", "results", "attrs"}) {
    if (text.size() > 1) text += ",";
    std::string_view usual = name == "op" ? "\"x\"" : name == "attrs" ? "{}" : "[]";
    text += StrCat('"', name, "\":", name == member ? value : usual);
  }
  return text + "}";
}

std::string Repeat(std::string_view piece, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += piece;
  return text;
}

struct BadText {
  std::string text;
  std::string message;
};

std::vector<BadText> BadTexts() {
  const std::string tensor = R"({"dtype":"f32","shape":[1]})";
  return {
      {"", "the text is empty"},
      {" ", "not JSON at byte"},
      {"{", "not JSON at byte 2"},
      {"scale = 2.0", "not JSON at byte 1"},
      {R"({scale = 2.0 : f32})", "not JSON at byte 2"},
      {std::string("{\0}", 3), "not JSON at byte 2"},
      {R"({"op":"x","args":[],"results":[],})", "not JSON"},
      {R"({"op":"x","args":[],"results":[]} x)", "not JSON"},
      {R"({"op":"x","args":[],"results":[]}{})", "not JSON"},
      {With("op", "\"\xff\""), "not JSON"},
      {With("op", "\"\xed\xa0\x80\""), "not JSON"},
      {With("op", "\"\\ud800\""), "not JSON"},
      {With("op", "\"a\nb\""), "not JSON"},
      {"null", "the call is null; it must be an object with the members op, args"},
      {"[]", "the call is an array of 0"},
      {"\"simple_add\"", "the call is the string \"simple_add\""},
      {"7", "the call is the int 7"},
      {"{}", "lacks the member 'op'"},
      {R"({"op":"x","results":[]})", "lacks the member 'args'"},
      {R"({"op":"x","args":[]})", "lacks the member 'results'"},
      {R"({"op":"x","args":[],"results":[],"version":1})", "unknown member 'version'; allowed are"},
      {R"({"op":"x","op":"y","args":[],"results":[]})", "member 'op' is given twice"},
      {With("op", "7"), "op is the int 7; it must be a string"},
      {With("op", "null"), "op is null"},
      {With("args", "{}"), "args is an object of 0; it must be an array"},
      {With("args", "\"f32[3]\""), "args is the string \"f32[3]\""},
      {With("args", "[3]"), "args[0] is the int 3; it must be an object with the members dtype"},
      {With("args", "[{}]"), "args[0] lacks the member 'dtype'"},
      {With("args", R"([{"dtype":"f32"}])"), "args[0] lacks the member 'shape'"},
      {With("args", R"([{"dtype":"f32","shape":[],"layout":[]}])"), "unknown member 'layout'"},
      {With("args", R"([{"dtype":"float","shape":[]}])"),
       "args[0].dtype is \"float\"; allowed are"},
      {With("args", R"([{"dtype":11,"shape":[]}])"), "args[0].dtype is the int 11"},
      {With("args", R"([{"dtype":"f32","shape":3}])"), "args[0].shape is the int 3"},
      {With("args", R"([{"dtype":"f32","shape":[3.0]}])"), "args[0].shape holds the float 3"},
      {With("args", R"([{"dtype":"f32","shape":[true]}])"), "args[0].shape holds true"},
      {With("args", R"([{"dtype":"f32","shape":[[3]]}])"), "args[0].shape holds an array of 1"},
      {With("args", R"([{"dtype":"f32","shape":[-1]}])"), "dimensions must not be negative"},
      {With("results", R"([{"dtype":"i8","shape":[0,-1]}])"),
       "results[0] is i8[0,-1]; dimensions must not"},
      {With("results", R"([{"dtype":"f32","shape":[4611686018427387904]}])"),
       "does not fit 63 bits"},
      {With("results", R"([{"dtype":"i8","shape":[4294967296,4294967296]}])"),
       "does not fit 63 bits"},
      {With("args", R"([{"dtype":"f32","shape":[9223372036854775808]}])"),
       "the int 9223372036854775808 does not fit 64 signed bits"},
      {With("args", R"([{"dtype":"f32","shape":[123456789012345678901234567890]}])"),
       "the int 123456789012345678901234567890 does not fit"},
      {With("args", StrCat(R"([{"dtype":"f32","shape":[)", Repeat("1,", 32), "1]}]")),
       "args[0].shape has 33 dimensions; at most 32"},
      {With("args", StrCat("[", Repeat(tensor + ",", 64), tensor, "]")),
       "args has 65 tensors; at most 64"},
      {With("results", StrCat("[", Repeat(tensor + ",", 64), tensor, "]")),
       "results has 65 tensors; at most 64"},
      {With("attrs", "[]"), "attrs is an array of 0; it must be an object"},
      {With("attrs", R"({"scale":null})"), "attrs.scale is null; allowed are"},
      {With("attrs", R"({"scale":{"a":1}})"), "attrs.scale is an object of 1"},
      {With("attrs", R"({"":1})"), "empty name"},
      {With("attrs", R"({"a":1,"a":1})"), "member 'a' is given twice"},
      {With("attrs", R"({"a":[1,2.5]})"), "attrs.a holds the float 2.5; an array must hold ints"},
      {With("attrs", R"({"a":["x"]})"), "attrs.a holds the string \"x\""},
      {With("attrs", R"({"a":1e999})"), "not JSON"},
      {With("attrs", R"({"a":NaN})"), "not JSON"},
      {With("attrs", R"({"a":Infinity})"), "not JSON"},
      {With("attrs", R"({"a":-9223372036854775809})"), "does not fit 64 signed bits"},
      {With("attrs", StrCat("{\"a\":[", Repeat("1,", 16384), "1]}")),
       "brings the ints of all arrays to 16385; at most 16384"},
      {With("attrs", Repeat("{\"a\":", 9)), "nested deeper than 8 levels"},
      {Repeat("[", 100000), "nested deeper than 8 levels"},
      {StrCat("[", Repeat("1,", 70000), "1]"), "more than 65536 values"},
      {Repeat(" ", kMaxOpaqueBytes + 1), "the text has 1048577 bytes; at most 1048576"},
  };
}

TEST(Opaque, BadTextsAreRefusedWithTheReason) {
  std::vector<BadText> rows = BadTexts();
  EXPECT_GE(rows.size(), 30u);
  for (const BadText& row : rows) {
    auto decoded = DecodeOpaque(row.text);
    ASSERT_FALSE(decoded.ok()) << row.text.substr(0, 200);
    EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(decoded.status().message(), HasSubstr(row.message)) << row.text.substr(0, 200);
    EXPECT_THAT(decoded.status().message(), HasSubstr("opaque: "));
    EXPECT_LT(decoded.status().message().size(), 400u);
  }
}

TEST(Opaque, TooManyAttributesAreRefused) {
  std::string attrs = "{";
  for (int i = 0; i < 33; ++i) attrs += StrCat(i == 0 ? "" : ",", "\"a", i, "\":1");
  auto decoded = DecodeOpaque(With("attrs", attrs + "}"));
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.status().message(), HasSubstr("at most 32 attributes"));
}

TEST(Opaque, WhatJsonCannotHoldIsNotEncoded) {
  const auto attempt = [](OpaqueCall call) { return EncodeOpaque(call).status().message(); };
  EXPECT_THAT(attempt({"x", {}, {}, {{"a", std::nan("")}}}), HasSubstr("floats must be finite"));
  EXPECT_THAT(attempt({"x", {}, {}, {{"a", std::numeric_limits<double>::infinity()}}}),
              HasSubstr("attrs.a is inf"));
  EXPECT_THAT(attempt({"x", {}, {}, {{"a", std::string("\xff")}}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(attempt({"\xff", {}, {}, {}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(attempt({"x", {}, {}, {{"a", int64_t{1}}, {"a", int64_t{2}}}}),
              HasSubstr("'a' is given twice"));
  EXPECT_THAT(attempt({"x", {{DType::kF32, {-1}}}, {}, {}}),
              HasSubstr("args[0] is f32[-1]; dimensions"));
  EXPECT_THAT(attempt({"x", {{DType::kInvalid, {1}}}, {}, {}}), HasSubstr("no dtype"));
  EXPECT_THAT(attempt({"x", {}, {}, {{"a", std::string(kMaxOpaqueBytes, 'a')}}}),
              HasSubstr("bytes; at most"));
}

}  // namespace
}  // namespace xla_gpu::xla
