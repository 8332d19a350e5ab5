// quantize_rows: what is accepted, the message for everything that is not, and the Host's results.
#include "src/ops/quantize_rows/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/ops/paged_cache/typed_call_test_util.h"
#include "src/ops/quantize_rows/random_case.h"

namespace xla_gpu::quantize_rows {
namespace {

using paged_cache::BadInput;
using paged_cache::TypedCall;

TypedCall MakeCall() {
  return {"quantize_rows",
          {{"x", {DType::kF32, {6, 32}}},
           {"norm_weight", {DType::kF16, {32}}},
           {"row_factor", {DType::kF32, {6}}},
           {"column_factor", {DType::kF32, {32}}},
           {"residual", {DType::kBF16, {6, 32}}}}};
}

TEST(QuantizeRows, ResultsAreRowsAndTheirScales) {
  TypedCall call = MakeCall();
  std::vector<TensorSpec> types = {
      {DType::kF8E4M3FN, {6, 32}}, {DType::kF32, {6}}, {DType::kBF16, {6, 32}}};
  EXPECT_EQ(*call.Infer(), types);
  call.args.erase("residual");
  types.pop_back();
  EXPECT_EQ(*call.Infer(), types);
  call.args.erase("norm_weight");
  EXPECT_EQ(*call.Infer(), types);
  call.args["x"].shape[0] = call.args["row_factor"].shape[0] = 0;
  EXPECT_TRUE(call.Infer().ok());
}

TEST(QuantizeRows, OfAnActivationAreHalfOfTheColumns) {
  TypedCall call = MakeCall();
  call.attrs["activation"] = "silu_mul";
  call.args["norm_weight"].shape[0] = 16;
  call.args.erase("residual");
  const std::vector<TensorSpec> types = {{DType::kF8E4M3FN, {6, 16}}, {DType::kF32, {6}}};
  EXPECT_EQ(*call.Infer(), types);
}

class QuantizeRowsBadInput : public ::testing::TestWithParam<BadInput> {};
TEST_P(QuantizeRowsBadInput, GivesItsMessage) { ExpectRefused(MakeCall(), GetParam()); }

const BadInput kBadInputs[] = {
    {"Dtype", [](TypedCall& c) { c.args["x"].dtype = DType::kI8; },
     "x is i8[6,32]; its dtype must be f32, bf16 or f16"},
    {"Rank", [](TypedCall& c) { c.args["x"].shape = {32}; },
     "x is f32[32]; it must be [rows, columns]"},
    {"NoColumns", [](TypedCall& c) { c.args["x"].shape[1] = 0; },
     "x is f32[6,0]; it must be [rows, columns], rows at most 2147483647, columns 1 to"},
    {"Norm", [](TypedCall& c) { c.args["norm_weight"].shape[0] = 31; },
     "norm_weight is f16[31]; it must be f16[32], one for each column of x f32[6,32]"},
    {"NormDtype", [](TypedCall& c) { c.args["norm_weight"].dtype = DType::kI32; },
     "norm_weight is i32[32]; its dtype must be"},
    {"NormOfAnActivation", [](TypedCall& c) { c.attrs["activation"] = "silu_mul"; },
     "norm_weight is f16[32]; it must be f16[16], one for each column of a half of x f32[6,32]"},
    {"RowFactor", [](TypedCall& c) { c.args["row_factor"].shape[0] = 32; },
     "row_factor is f32[32]; it must be f32[6], one for each row of x f32[6,32]"},
    {"ColumnFactor", [](TypedCall& c) { c.args["column_factor"].shape[0] = 6; },
     "column_factor is f32[6]; it must be f32[32], one for each column of x f32[6,32]"},
    {"FactorDtype", [](TypedCall& c) { c.args["column_factor"].dtype = DType::kBF16; },
     "column_factor is bf16[32]; its dtype must be f32"},
    {"Residual",
     [](TypedCall& c) {
       c.args["residual"].shape = {32, 6};
     },
     "residual is bf16[32,6]; it must be bf16[6,32], as the result of x f32[6,32]"},
    {"ResidualDtype", [](TypedCall& c) { c.args["residual"].dtype = DType::kI32; },
     "residual is i32[6,32]; its dtype must be"},
    {"Activation", [](TypedCall& c) { c.attrs["activation"] = "gelu"; },
     "attribute 'activation' is \"gelu\"; allowed are none and silu_mul"},
    {"Odd",
     [](TypedCall& c) {
       c.attrs["activation"] = "silu_mul";
       c.args["x"].shape[1] = 33;
     },
     "x is f32[6,33]; with activation silu_mul its columns must be even"},
    {"Negative", [](TypedCall& c) { c.attrs["epsilon"] = -1.0; }, "attribute 'epsilon' is -1"},
    {"NaN", [](TypedCall& c) { c.attrs["epsilon"] = std::nan(""); }, "attribute 'epsilon' is nan"},
    {"Infinite", [](TypedCall& c) { c.attrs["epsilon"] = 1e300; }, "attribute 'epsilon' is inf"}};
INSTANTIATE_TEST_SUITE_P(All, QuantizeRowsBadInput, testing::ValuesIn(kBadInputs),
                         [](const auto& info) { return std::string(info.param.name); });

Status RunOnHost(const Call& call) {
  ExecutionContext context;
  context.thread_pool = &DefaultThreadPool();
  return RunOp(**OpRegistry::Global().Get("quantize_rows"), Platform::kHost, call, context);
}

TEST(QuantizeRowsOnHost, IsRightOnRandomProblems) {
  for (const Kind& kind : kKinds) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      std::mt19937_64 rng(seed);
      const Case c(kind, rng);
      const std::string what = StrCat("seed ", seed, ": ", c.ToString());
      const Status status = RunOnHost(c.call());
      ASSERT_TRUE(status.ok()) << status.ToString() << "\n" << what;
      c.ExpectRight(c.out, c.scale, c.sum.data == nullptr ? nullptr : &c.sum, what);
      if (HasFatalFailure()) return;
    }
  }
}

// The sum of squares leaves f32, but not their mean.
TEST(QuantizeRowsOnHost, NormsOfLargeRowsAreRight) {
  const OwnedTensor x(DType::kF32, {1, 512}), weight(DType::kF32, {512});
  const OwnedTensor out(DType::kF8E4M3FN, {1, 512}), scale(DType::kF32, {1});
  std::fill_n(x.floats(), 512, 3e18f);
  std::fill_n(weight.floats(), 512, 448.0f);
  const TensorView args[] = {x.view(), weight.view()}, results[] = {out.view(), scale.view()};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("optional_args", std::string_view("norm_weight")).ok());
  ASSERT_TRUE(RunOnHost({args, results, &attributes}).ok());
  EXPECT_EQ(out.Get(0), 448);
  EXPECT_NEAR(scale.floats()[0], 1, 1e-6);
}

TEST(QuantizeRowsOnHost, WhatIsNotFiniteStaysInItsRow) {
  const OwnedTensor x(DType::kF32, {4, 3}), out(DType::kF8E4M3FN, {4, 3}), scale(DType::kF32, {4});
  const float inf = HUGE_VALF, nan = std::nanf("");
  const std::vector<float> values = {1, nan, 2, 1, -inf, 2, nan, nan, nan, 448, -448, 1};
  std::copy(values.begin(), values.end(), x.floats());
  const TensorView arg = x.view(), results[] = {out.view(), scale.view()};
  const Attributes attributes;
  ASSERT_TRUE(RunOnHost({{&arg, 1}, results, &attributes}).ok());
  const std::vector<double> expected = {224, nan, 448, 0, nan, 0, nan, nan, nan, 448, -448, 1};
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = out.Get(static_cast<int64_t>(i));
    EXPECT_TRUE(got == expected[i] || (std::isnan(got) && std::isnan(expected[i]))) << i << got;
  }
  EXPECT_EQ(scale.floats()[1], inf);
  EXPECT_EQ(scale.floats()[2], kLeastScale);
  EXPECT_EQ(scale.floats()[3], 1);
}

}  // namespace
}  // namespace xla_gpu::quantize_rows
