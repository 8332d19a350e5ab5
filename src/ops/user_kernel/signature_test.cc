#include "src/ops/user_kernel/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::HasSubstr;

// "x:const f32*, n:i32", or the error.
std::string Signature(std::string_view text, std::string_view entry = "f") {
  const auto parameters = ParseSignature(text, entry);
  if (!parameters.ok()) return parameters.status().message();
  return StrJoin(*parameters, ", ", [](const DeclaredParameter& p) {
    return StrCat(p.name, ":", p.is_const ? "const " : "",
                  p.type == DType::kInvalid ? "?" : DTypeName(p.type), p.is_pointer ? "*" : "");
  });
}

TEST(Signature, Kernels) {
  EXPECT_EQ(Signature(R"(extern "C" __global__ void __launch_bounds__(256)
                         f(const float* __restrict__ x, float *out, int n) {})"),
            "x:const f32*, out:f32*, n:i32");
  EXPECT_EQ(Signature("void f() {}"), "");
  EXPECT_EQ(Signature("void f(void);"), "");
  EXPECT_EQ(Signature("float* f(float x);"), "x:f32");
  EXPECT_EQ(Signature("std::vector<int> f(bool x);"), "x:pred");
  EXPECT_EQ(Signature("auto f(double x) -> void { }"), "x:f64");
  EXPECT_EQ(Signature("template <typename T, int N = (2 > 1)>\n__global__ void f(T* x, const T a)",
                      "f<float, 256>"),
            "x:?*, a:?");
}

TEST(Signature, Types) {
  const struct {
    const char* c;
    const char* dtype;
  } cases[] = {{"float", "f32"},
               {"double", "f64"},
               {"bool", "pred"},
               {"char", "i8"},
               {"signed char", "i8"},
               {"unsigned char", "u8"},
               {"short", "i16"},
               {"short int", "i16"},
               {"unsigned short int", "u16"},
               {"int", "i32"},
               {"unsigned", "u32"},
               {"int unsigned", "u32"},
               {"long", "i64"},
               {"long long", "i64"},
               {"long unsigned int", "u64"},
               {"unsigned long long int", "u64"},
               {"long double", "?"},
               {"std::int32_t", "i32"},
               {"::std::uint8_t", "u8"},
               {"cuda::std::int64_t", "i64"},
               {"std :: size_t", "u64"},
               {"size_t", "u64"},
               {"ptrdiff_t", "i64"},
               {"__half", "f16"},
               {"half", "f16"},
               {"_Float16", "f16"},
               {"nv_bfloat16", "bf16"},
               {"__nv_bfloat16", "bf16"},
               {"__nv_fp8_e4m3", "f8e4m3fn"},
               {"__nv_fp8_e5m2", "f8e5m2"},
               {"void", "?"},
               {"mine", "?"},
               {"struct mine", "?"},
               {"std::array<int, 3>", "?"},
               {"typename T::value", "?"}};
  for (const auto& c : cases) {
    EXPECT_EQ(Signature(StrCat("void f(", c.c, " x)")), StrCat("x:", c.dtype)) << c.c;
    EXPECT_EQ(Signature(StrCat("void f(const ", c.c, "* x, int n)")),
              StrCat("x:const ", c.dtype, "*, n:i32"))
        << c.c;
    EXPECT_EQ(Signature(StrCat("void f(", c.c, " const *restrict const x)")),
              StrCat("x:const ", c.dtype, "*"))
        << c.c;
    EXPECT_EQ(Signature(StrCat("void f(volatile ", c.c, "*const __restrict x)")),
              StrCat("x:", c.dtype, "*"))
        << c.c;
  }
}

TEST(Signature, ArraysAttributesAndDefaults) {
  EXPECT_EQ(Signature("void f(float x[], const int y[4][N + 1])"),
            "parameter 1 of f is a pointer to pointers or arrays; let it be a named pointer or "
            "number, or give `parameters`");
  EXPECT_EQ(Signature("void f(float x[], const int y[4], int n)"), "x:f32*, y:const i32*, n:i32");
  EXPECT_EQ(Signature("void f([[maybe_unused]] float x, const __grid_constant__ int n)"),
            "x:f32, n:i32");
  EXPECT_EQ(Signature("void f(int n = 3, float a = g(1, 2), bool b = 1 < 2, int c = 1 << 4, "
                      "int d = Of<int, 3>::kSize, char e = ',', int g = {1, 2}, double h = 1'000)"),
            "n:i32, a:f32, b:pred, c:i32, d:i32, e:i8, g:i32, h:f64");
}

TEST(Signature, TypesOfATemplate) {
  const auto parsed = ParseSignature(
      "template <typename Own, class T, int N = 2>\n__global__ void f(const T* x, T n, Own* y, "
      "const Pack<T, N>* z, typename Traits<T>::Sum* s, const T *w, float* v) {}",
      "f<int, float>");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  std::vector<std::string> types;
  for (const DeclaredParameter& parameter : *parsed) types.push_back(parameter.type_parameter);
  EXPECT_EQ(types, (std::vector<std::string>{"T", "", "Own", "", "", "T", ""}));
  EXPECT_EQ(ParseSignature("void f(T* x);", "f")->at(0).type_parameter, "");
}

TEST(Signature, CommentsLiteralsAndPreprocessor) {
  EXPECT_EQ(
      Signature("// void f(int wrong);\n/* void f(int wrong) */ void f(int /* no */ right) {}"),
      "right:i32");
  EXPECT_EQ(Signature("// a \\\n void f(int wrong);\nvoid f(int right);"), "right:i32");
  EXPECT_EQ(
      Signature("#define X void f(int wrong) \\\r\n  void f(int wrong2)\r\nvoid f(int right);"),
      "right:i32");
  EXPECT_EQ(Signature("  #  if 0\nvoid f(int read, int too);\n#endif"), "read:i32, too:i32");
  EXPECT_EQ(
      Signature(R"x(const char* s = "void f(int wrong)\" void f(int wrong)"; void f(int right);)x"),
      "right:i32");
  EXPECT_EQ(Signature(R"x(auto s = R"a(" void f(int wrong) )" )a"; void f(int right);)x"),
            "right:i32");
  EXPECT_EQ(Signature(R"x(auto s = u8R"(")"; auto c = L'"'; auto d = '\''; void f(int right);)x"),
            "right:i32");
  EXPECT_EQ(Signature("int n = 1'000'000; void f(int right); int m = 1'0;"), "right:i32");
}

TEST(Signature, TheDeclarationThatNamesItsParameters) {
  EXPECT_EQ(Signature("void f(float*, int);\nvoid f(float* x, int n) {}"), "x:f32*, n:i32");
  EXPECT_EQ(Signature("void f(float* a);\nvoid f(float* b) {}"), "a:f32*");
  EXPECT_EQ(Signature("void g(int n) { f(n); int f(n); return f(n); }\nvoid f(float* x) {}"),
            "x:f32*");
  EXPECT_EQ(Signature("int y = f(3); int z(f(3)); auto g = [] { return f(3); }; void f(int n);"),
            "n:i32");
  EXPECT_EQ(Signature("void ff(int a); void xf(int b); int f; void f_(int c); void f(int d);"),
            "d:i32");
  EXPECT_EQ(Signature("void f(float*, unsigned int);"),
            "parameter 0 of f has no name in the source text; let it be a named pointer or "
            "number, or give `parameters`");
  EXPECT_THAT(Signature("void f(unsigned int);"), HasSubstr("parameter 0 of f has no name"));
}

TEST(Signature, QualifiedNames) {
  const std::string text =
      "namespace a { namespace { void f(int in_a); } }\n"
      "namespace a::b { struct C : D { static void f(int in_c) {} }; void f(int in_b) {} }\n"
      "extern \"C\" { void f(int in_none); }\n"
      "template <> void a::e::f<int>(int no);\nvoid a::d::f(int in_d) {}";
  EXPECT_EQ(Signature(text), "in_none:i32");
  EXPECT_EQ(Signature(text, "::f"), "in_none:i32");
  EXPECT_EQ(Signature(text, "a::f"), "in_a:i32");
  EXPECT_EQ(Signature(text, "::a::b::f<x::y> "), "in_b:i32");
  EXPECT_EQ(Signature(text, "a::b::C::f"), "in_c:i32");
  EXPECT_EQ(Signature(text, "a::d::f"), "in_d:i32");
  // Where none is in that scope (an alias, a using), the first.
  EXPECT_EQ(Signature(text, "z::f"), "in_a:i32");
}

TEST(Signature, WhatCannotBePassed) {
  const struct {
    const char* list;
    const char* problem;
  } cases[] = {{"float& x", "is a reference"},
               {"const std::vector<int>& x", "is a reference"},
               {"T&& x", "is a reference"},
               {"float** x", "is a pointer to pointers"},
               {"float* x[3]", "is a pointer to pointers"},
               {"void (*callback)(int)", "is a function"},
               {"int __attribute__((unused)) x", "is a function, or has an attribute"},
               {"T... x", "stands for any number"},
               {"...", "stands for any number"},
               {"float", "has no name"},
               {"std::int32_t", "has no name"},
               {"", ""}};
  for (const auto& c : cases)
    EXPECT_THAT(Signature(StrCat("void f(", c.list, ")")), HasSubstr(c.problem));
}

TEST(Signature, MacrosAreNotExpanded) {
  EXPECT_THAT(Signature("#define KERNEL(name) __global__ void name\nKERNEL(f)(float* x) {}"),
              HasSubstr("the source text declares no function 'f'; entry must name one of it"));
  EXPECT_EQ(Signature("#define API __global__\nAPI void f(float* x)"), "x:f32*");
}

TEST(Signature, EntriesThatAreNoNames) {
  for (const char* entry : {"", ";", "<float>", "a::", "2f", "{"}) {
    EXPECT_THAT(Signature(";(x; *; ;*); {;(int x)}", entry), HasSubstr("it must name a function"))
        << entry;
  }
}

TEST(Signature, PathologicalTexts) {
  const auto repeat = [](std::string_view part, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += part;
    return text;
  };
  const std::clock_t start = std::clock();  // this process's, however many others there are
  for (const std::string& text : {std::string(),
                                  std::string("void f("),
                                  std::string("void f(int x"),
                                  std::string("f(x)"),
                                  std::string("\"void f(int x)"),
                                  std::string("/* void f(int x)"),
                                  std::string("'"),
                                  std::string("R\"("),
                                  std::string("\\"),
                                  std::string("#"),
                                  std::string("{"),
                                  std::string("}}}} ) ) ) void g(int x)"),
                                  std::string("void f\0(int x", 13),
                                  repeat("a f(", 100'000),
                                  repeat("void f(", 50'000) + repeat(")", 50'000),
                                  repeat("a f({", 100'000),
                                  repeat("(", 500'000),
                                  repeat("{", 500'000),
                                  repeat("<", 500'000),
                                  repeat("void f(float);", 50'000),
                                  repeat("R\"a(", 100'000),
                                  repeat("void f(int <", 50'000),
                                  "void f(" + repeat("<[({", 100'000) + ")",
                                  "void f(" + repeat("*", 500'000) + " x)"}) {
    EXPECT_FALSE(ParseSignature(text, "f").ok()) << text.substr(0, 40);
  }
  EXPECT_EQ(Signature("}}}} ) ) ) void f(int x)"), "x:i32");
  EXPECT_EQ(Signature(repeat("namespace a {", 10'000) + "void f(int x)"), "x:i32");
  EXPECT_FALSE(ParseSignature("void f(int x)", "").ok());
  EXPECT_FALSE(ParseSignature("void f(int x)", "<").ok());
  EXPECT_FALSE(ParseSignature("void f(int x)", "::").ok());
#if defined(XLA_GPU_SANITIZED)  // fifty times slower
  constexpr int kSeconds = 100;
#else
  constexpr int kSeconds = 10;
#endif
  EXPECT_LT(std::clock() - start, kSeconds * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace xla_gpu::user_kernel
