// The op that a definition becomes: its schema, what it infers and refuses, and its Host plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <variant>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

extern "C" int AddOnHost(const float* x, const float* y, float* out, int8_t n, float a) {
  if (n < 0) return n;
  for (int i = 0; i < n; ++i) out[i] = x[i] + (y == nullptr ? 0 : y[i]) * a;
  return 0;
}

std::string Json(std::string text) {
  for (char& c : text) {
    if (c == '\'') c = '"';
  }
  return text;
}

// JSON with ' for "; HOST becomes the address of AddOnHost.
const Op& Define(const std::string& text) {
  std::string json = Json(text);
  if (const size_t at = json.find("HOST"); at != json.npos) {
    json.replace(at, 4, std::to_string(reinterpret_cast<uintptr_t>(&AddOnHost)));
  }
  const auto op = OpRegistry::Global().Define(json);
  EXPECT_TRUE(op.ok()) << op.status().ToString();
  return **op;
}

const Op& Add() {
  return Define(R"({'name': 'add_n', 'doc': 'adds',
    'arguments': [{'name': 'x', 'dtypes': ['f32']}, {'name': 'y', 'optional': true}],
    'results': [{'name': 'out', 'like': 'x'}],
    'scalars': [{'name': 'n', 'type': 'i8'}, {'name': 'a', 'type': 'f32', 'default': 1}],
    'implementations': {'Host': {'kind': 'function', 'address': HOST, 'returns_error': true}}})");
}

const Op& Launched() {
  return Define(R"({'name': 'launched', 'workspace': true, 'capture': false,
    'results': [{'name': 'y', 'alias_of': 'y'}, {'name': 'sum'}, {'name': 'low', 'like': 'x', 'dtype': 'bf16'}],
    'implementations': {'CUDA': {'kind': 'cuda_source', 'entry': 'f', 'cluster': [2, 1, 1],
      'text': 'void f(const float* x, float* y, double* sum, unsigned short* low, char* workspace)'}}})");
}

using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

class OpTest : public testing::Test {
 protected:
  struct Arguments {
    std::vector<TensorSpec> args;
    std::vector<std::pair<std::string, Value>> attrs;
  };

  static StatusOr<std::string> Infer(const Op& op, Platform platform, const Arguments& arguments) {
    Attributes attributes;
    for (const auto& [name, value] : arguments.attrs) {
      EXPECT_TRUE(
          attributes.Add(name, std::visit([](const auto& v) { return AttrValue(v); }, value)).ok());
    }
    std::vector<TensorView> views;
    for (const TensorSpec& spec : arguments.args)
      views.push_back({nullptr, spec.dtype, spec.shape});
    const auto results = InferResults(op, platform, {views, {}, &attributes});
    if (!results.ok()) return results.status();
    return StrJoin(*results, " ", [](const Result& result) {
      return StrCat(result.type.ToString(),
                    result.alias_of < 0 ? "" : StrCat("=arg", result.alias_of));
    });
  }
};

TEST_F(OpTest, TheSchema) {
  const Op& op = Add();
  EXPECT_EQ(op.name, "add_n");
  EXPECT_EQ(op.target, "add_n");
  EXPECT_EQ(op.doc, "adds");
  EXPECT_THAT(op.key, testing::StartsWith("add_n@"));
  EXPECT_TRUE(op.capturable);
  EXPECT_TRUE(op.make_plan[static_cast<size_t>(Platform::kHost)]);
  EXPECT_FALSE(op.make_plan[static_cast<size_t>(Platform::kCuda)]);
  std::vector<std::string> attrs;
  for (const AttrSpec& attr : op.attrs) {
    attrs.push_back(
        StrCat(attr.name, attr.derived ? " derived" : "", " ", AttrTypeName(attr.type)));
  }
  EXPECT_THAT(attrs, ElementsAre("n int", "a float", "kernel derived string",
                                 "definition derived string", "result_types derived int array"));
  attrs.clear();
  for (const AttrSpec& attr : Launched().attrs) attrs.push_back(attr.name);
  EXPECT_THAT(attrs, ElementsAre("kernel", "definition", "result_types", "grid", "block",
                                 "shared_memory", "workspace_bytes"));
  EXPECT_FALSE(Launched().capturable);
  EXPECT_EQ(Launched().results.back().kind, ResultKind::kScratch);
  EXPECT_EQ(&Add(), &op);
}

const TensorSpec kF32{DType::kF32, {2, 3}};

TEST_F(OpTest, ResultTypes) {
  EXPECT_EQ(*Infer(Add(), Platform::kHost, {{kF32}, {{"n", int64_t{1}}}}), "f32[2,3]");
  const std::vector<int64_t> three = {1, 1, 1}, types = {12, 1, 7};
  const Arguments whole = {{kF32, kF32},
                           {{"grid", std::vector<int64_t>{4, 1, 1}},
                            {"block", three},
                            {"result_types", types},
                            {"workspace_bytes", int64_t{64}}}};
  EXPECT_EQ(*Infer(Launched(), Platform::kCuda, whole), "f32[2,3]=arg1 f64[7] bf16[2,3] u8[64]");
  Arguments without = whole;
  without.attrs.pop_back();
  EXPECT_EQ(*Infer(Launched(), Platform::kCuda, without), "f32[2,3]=arg1 f64[7] bf16[2,3]");
}

TEST_F(OpTest, AGridWithoutBlocksIsForNothingToWrite) {
  const auto infer = [](const TensorSpec& x, int64_t sums) {
    const std::vector<int64_t> block = {32, 1, 1}, grid = {4, 0, 1}, types = {12, 1, sums};
    return Infer(Launched(), Platform::kCuda,
                 {{x, kF32}, {{"grid", grid}, {"block", block}, {"result_types", types}}});
  };
  // y is in place: it keeps what it has.
  EXPECT_EQ(*infer({DType::kF32, {0, 3}}, 0), "f32[2,3]=arg1 f64[0] bf16[0,3]");
  EXPECT_THAT(infer({DType::kF32, {0, 3}}, 7).status().message(),
              HasSubstr("launched: grid is [4,0,1], so no block would write result sum, f64[7]; "
                        "each of its ints must be at least 1"));
  EXPECT_THAT(infer(kF32, 0).status().message(), HasSubstr("result low, bf16[2,3]"));
}

TEST_F(OpTest, WhatIsWrongIsNamed) {
  const std::vector<int64_t> one = {1, 1, 1}, grid = {2, 1, 1}, f64 = {12, 1, 7};
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto launched = [&](std::string_view name, const Value& value) {
    Arguments arguments = {{kF32, kF32}, {{"grid", grid}, {"block", one}, {"result_types", f64}}};
    for (auto& [known, old] : arguments.attrs) {
      if (known == name) {
        old = value;
        return Infer(Launched(), Platform::kCuda, arguments).status().message();
      }
    }
    arguments.attrs.push_back({std::string(name), value});
    return Infer(Launched(), Platform::kCuda, arguments).status().message();
  };
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(launched("shared_memory", int64_t{0}), "");
  const struct {
    const char* name;
    Value value;
    const char* message;
  } cases[] = {
      {"grid", Ints{}, "launched: grid is []; it must be three ints from 0 to 2147483647, 65535"},
      {"grid", Ints{1, 1}, "launched: grid is [1,1]; it must be three"},
      {"grid", Ints{-1, 1, 1}, "grid is [-1,1,1]"},
      {"grid", Ints{kHuge, 1, 1}, "it must be three ints from 0"},
      {"grid", Ints{1, 65536, 1}, "grid is [1,65536,1]"},
      {"block", Ints{0, 1, 1}, "launched: block is [0,1,1]; it must be three ints from 1 to 1024"},
      {"block", Ints{1, 1, 65}, "block is [1,1,65]"},
      {"block", Ints{1024, 2, 1}, "a block has at most 1024 threads"},
      {"grid", int64_t{3}, "attribute 'grid' is int 3; it must be int array"},
      {"shared_memory", int64_t{-1}, "launched: shared_memory is -1; it must be 0 to 1048576"},
      {"shared_memory", kHuge, "shared_memory is 9223372036854775807"},
      {"workspace_bytes", int64_t{-1}, "launched: workspace_bytes is -1; it must not be negative"},
      {"result_types", Ints{}, "launched: result_types has 0 types, none for result sum"},
      {"result_types", Ints{12}, "launched: result_types is [12]; it must have a dtype's number"},
      {"result_types", Ints{12, 2, 7}, "it must have a dtype's number, the rank"},
      {"result_types", Ints{12, -1, 7}, "it must have a dtype's number"},
      {"result_types", Ints{12, kHuge, 7}, "it must have a dtype's number"},
      {"result_types", Ints{0, 0}, "it must have a dtype's number"},
      {"result_types", Ints{kHuge, 0}, "it must have a dtype's number"},
      {"result_types", Ints{12, 1, -7}, "launched: a result is f64[-7]; dimensions must not be"},
      {"result_types", Ints{12, 1, kHuge}, "does not fit 63 bits"},
      {"result_types", Ints{12, 0, 12, 0}, "has 2 types for 1 results that are not like an"},
      {"result_types", Ints{11, 0},
       "launched: sum is f32[], but the source text has a pointer to f64"},
      {"color", int64_t{1}, "launched: unknown attribute 'color'"},
  };
  for (const auto& c : cases) EXPECT_THAT(launched(c.name, c.value), HasSubstr(c.message));
  const auto add = [](const Arguments& arguments) {
    return Infer(Add(), Platform::kHost, arguments).status().message();
  };
  EXPECT_THAT(add({{kF32}, {}}), HasSubstr("add_n: attribute 'n' (int) is missing"));
  EXPECT_EQ(add({{kF32}, {{"n", int64_t{128}}}}),
            "add_n: n is 128, which its type i8 does not hold; allowed are -128 to 127");
  EXPECT_THAT(add({{kF32}, {{"n", 1.5}}}), HasSubstr("'n' is float 1.5; it must be int"));
  EXPECT_THAT(add({{{DType::kF64, {1}}}, {{"n", int64_t{1}}}}), HasSubstr("its dtype must be f32"));
  EXPECT_THAT(add({{kF32, kF32}, {{"n", int64_t{1}}}}), HasSubstr("2 arguments came but 1"));
}

TEST_F(OpTest, RunsOnTheHost) {
  const std::vector<int64_t> shape = {3};
  std::vector<float> x = {1, 2, 3}, y = {10, 20, 30}, out(3);
  const auto run = [&](const Op& op, std::vector<TensorView> args, TensorView result, int64_t n,
                       std::string_view optional) {
    Attributes attributes;
    EXPECT_TRUE(attributes.Add("n", AttrValue(n)).ok());
    if (!optional.empty()) {
      EXPECT_TRUE(attributes.Add(kOptionalArgsAttribute, AttrValue(optional)).ok());
      EXPECT_TRUE(attributes.Add("a", AttrValue(2.0)).ok());
    }
    const std::vector<TensorView> results = {result};
    return RunOp(op, Platform::kHost, {args, results, &attributes}, {});
  };
  const TensorView vx{x.data(), DType::kF32, shape}, vy{y.data(), DType::kF32, shape},
      vout{out.data(), DType::kF32, shape};
  EXPECT_TRUE(run(Add(), {vx, vy}, vout, 3, "y").ok());
  EXPECT_THAT(out, ElementsAre(21, 42, 63));
  EXPECT_TRUE(run(Add(), {vx}, vout, 2, "").ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 63));
  const Status failed = run(Add(), {vx}, vout, -5, "");
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_EQ(failed.message(), "add_n: the function returned -5");

  // A result that shares its argument's buffer is that buffer.
  const Op& in_place = Define(R"({'name': 'in_place', 'arguments': [{'name': 'x'}, {'name': 'y'}],
    'results': [{'name': 'y', 'alias_of': 'y'}], 'scalars': [{'name': 'n', 'type': 'i8'}],
    'implementations': {'Host': {'kind': 'function', 'address': HOST,
      'parameters': ['x', null, 'y', 'n', {'value': 0, 'type': 'f32'}]}}})");
  EXPECT_THAT(run(in_place, {vx, vy}, vout, 3, "").message(),
              HasSubstr("in_place: result y must lie in the memory of argument y"));
  EXPECT_TRUE(run(in_place, {vx, vy}, vy, 3, "").ok());
  EXPECT_THAT(y, ElementsAre(1, 2, 3));
}

TEST_F(OpTest, AFunctionThatThrowsIsAnError) {
  const Op& op = Define(Json(R"({'name': 'thrower', 'results': [{'name': 'out', 'like': 'x'}],
    'implementations': {'Host': {'kind': 'host_source', 'entry': 'f',
    'text': '#include <stdexcept>\nvoid f(const float* x, float* out) { if (*x > 1) throw 3; throw std::runtime_error(\"mine\"); }'}}})"));
  const std::vector<int64_t> shape = {1};
  float x = 1, out = 0;
  const std::vector<TensorView> args = {{&x, DType::kF32, shape}};
  const std::vector<TensorView> results = {{&out, DType::kF32, shape}};
  const Attributes none;
  const Call call{args, results, &none};
  EXPECT_EQ(RunOp(op, Platform::kHost, call, {}).message(), "thrower: the function threw: mine");
  x = 2;
  EXPECT_THAT(RunOp(op, Platform::kHost, call, {}).message(), HasSubstr("threw what is no std::"));
}

TEST_F(OpTest, NamesOfTheLibrarysOwnOpsAreTaken) {
  for (const char* name : {"simple_add", "XlaGpuSimpleAdd"}) {
    const auto op = OpRegistry::Global().Define(
        Json(StrCat("{'name': '", name,
                    "', 'results': [{'name': 'o'}], 'implementations': {'Host': "
                    "{'kind': 'function', 'address': 1}}}")));
    EXPECT_THAT(op.status().message(), HasSubstr("this library has an op of this name"));
  }
}

}  // namespace
}  // namespace xla_gpu::user_kernel
