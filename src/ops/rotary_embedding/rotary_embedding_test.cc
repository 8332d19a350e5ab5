// rotary_embedding: what is accepted, the message for everything that is not, and the Host's
// results.
#include "src/ops/rotary_embedding/rotary_embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/ops/paged_cache/typed_call_test_util.h"
#include "src/ops/rotary_embedding/random_case.h"

namespace xla_gpu::rotary_embedding {
namespace {

using paged_cache::BadInput;
using paged_cache::TypedCall;

TypedCall MakeCall() {
  return {"rotary_embedding",
          {{"qkv", {DType::kBF16, {6, 256}}},
           {"positions", {DType::kI32, {6}}},
           {"cos_sin", {DType::kF32, {99, 24}}},
           {"q_norm", {DType::kF16, {32}}},
           {"k_norm", {DType::kF16, {32}}},
           {"row_factor", {DType::kF32, {6}}},
           {"column_factor", {DType::kF32, {256}}}},
          {{"q_heads", int64_t{4}}, {"kv_heads", int64_t{2}}}};
}

TEST(RotaryEmbedding, ResultsAreQueriesKeysAndValues) {
  TypedCall call = MakeCall();
  for (const int64_t tokens : {6, 0}) {
    for (const char* name : {"qkv", "positions", "row_factor"}) call.args[name].shape[0] = tokens;
    const TensorSpec q = {DType::kBF16, {tokens, 128}}, kv = {DType::kBF16, {tokens, 64}};
    EXPECT_EQ(*call.Infer(), (std::vector{q, kv, kv}));
  }
  call.args["cos_sin"].shape[0] = 0;
  EXPECT_TRUE(call.Infer().ok());
  call.args.erase("q_norm");
  call.args.erase("k_norm");
  call.attrs["out_dtype"] = "f16";
  EXPECT_EQ((*call.Infer())[2].dtype, DType::kF16);
}

class RotaryEmbeddingBadInput : public ::testing::TestWithParam<BadInput> {};
TEST_P(RotaryEmbeddingBadInput, GivesItsMessage) { ExpectRefused(MakeCall(), GetParam()); }

const BadInput kBadInputs[] = {
    {"Dtype", [](TypedCall& c) { c.args["qkv"].dtype = DType::kI8; },
     "qkv is i8[6,256]; its dtype must be f32, bf16 or f16"},
    {"Rank",
     [](TypedCall& c) {
       c.args["qkv"].shape = {6, 8, 32};
     },
     "qkv is bf16[6,8,32]; it must be [tokens, 8 * head_dim]"},
    {"NoColumns", [](TypedCall& c) { c.args["qkv"].shape[1] = 0; }, "qkv is bf16[6,0]; it must be"},
    {"Heads", [](TypedCall& c) { c.attrs["q_heads"] = int64_t{5}; },
     "qkv is bf16[6,256]; it must be [tokens, 9 * head_dim]"},
    {"OddHeads", [](TypedCall& c) { c.args["qkv"].shape[1] = 8 * 31; },
     "[tokens, 8 * head_dim], head_dim even"},
    {"ManyColumns", [](TypedCall& c) { c.args["qkv"].shape[1] = 1 << 23; },
     "columns at most 4194304"},
    {"NoQueries", [](TypedCall& c) { c.attrs["q_heads"] = int64_t{0}; },
     "attribute 'q_heads' is 0; it must be 1 to"},
    {"ManyKeys", [](TypedCall& c) { c.attrs["kv_heads"] = int64_t{1} << 62; },
     "attribute 'kv_heads' is 4611686018427387904; it must be 1 to"},
    {"Positions", [](TypedCall& c) { c.args["positions"].shape[0] = 5; },
     "positions is i32[5]; it must be i32[6], one for each token of qkv bf16[6,256]"},
    {"PositionsDtype", [](TypedCall& c) { c.args["positions"].dtype = DType::kI64; },
     "positions is i64[6]; its dtype must be i32"},
    {"TableRank", [](TypedCall& c) { c.args["cos_sin"].shape = {24}; },
     "cos_sin is f32[24]; it must be [max_positions, rotary_dim]"},
    {"TableOfMore", [](TypedCall& c) { c.args["cos_sin"].shape[1] = 34; },
     "rotary_dim even, 2 to the 32 of a head of qkv bf16[6,256]"},
    {"TableOfOdd", [](TypedCall& c) { c.args["cos_sin"].shape[1] = 23; }, "rotary_dim even"},
    {"TableOfNothing", [](TypedCall& c) { c.args["cos_sin"].shape[1] = 0; }, "rotary_dim even"},
    {"TableDtype", [](TypedCall& c) { c.args["cos_sin"].dtype = DType::kF64; },
     "cos_sin is f64[99,24]; its dtype must be"},
    {"QNormAlone", [](TypedCall& c) { c.args.erase("k_norm"); },
     "q_norm is given alone; it must be q_norm and k_norm, or neither"},
    {"KNormAlone", [](TypedCall& c) { c.args.erase("q_norm"); }, "k_norm is given alone"},
    {"QNorm", [](TypedCall& c) { c.args["q_norm"].shape[0] = 24; },
     "q_norm is f16[24]; it must be f16[32], as long as a head of qkv bf16[6,256]"},
    {"KNorm", [](TypedCall& c) { c.args["k_norm"].dtype = DType::kF32; },
     "k_norm is f32[32]; it must be f16[32], as q_norm"},
    {"NormDtype", [](TypedCall& c) { c.args["q_norm"].dtype = DType::kI8; },
     "q_norm is i8[32]; its dtype must be"},
    {"RowFactor", [](TypedCall& c) { c.args["row_factor"].shape[0] = 5; },
     "row_factor is f32[5]; it must be f32[6], one for each token of qkv bf16[6,256]"},
    {"ColumnFactor", [](TypedCall& c) { c.args["column_factor"].dtype = DType::kF16; },
     "column_factor is f16[256]; its dtype must be f32"},
    {"ColumnFactors", [](TypedCall& c) { c.args["column_factor"].shape[0] = 128; },
     "column_factor is f32[128]; it must be f32[256], one for each column of qkv bf16[6,256]"},
    {"OutDtype", [](TypedCall& c) { c.attrs["out_dtype"] = "i8"; }, "out_dtype"},
    {"Negative", [](TypedCall& c) { c.attrs["epsilon"] = -1.0; }, "attribute 'epsilon' is -1"},
    {"NaN", [](TypedCall& c) { c.attrs["epsilon"] = std::nan(""); }, "attribute 'epsilon' is nan"},
    {"Infinite", [](TypedCall& c) { c.attrs["epsilon"] = 1e300; }, "attribute 'epsilon' is inf"}};
INSTANTIATE_TEST_SUITE_P(All, RotaryEmbeddingBadInput, testing::ValuesIn(kBadInputs),
                         paged_cache::BadInputName);

TEST(RotaryEmbeddingOnHost, IsRightOnRandomProblems) {
  for (const Kind& kind : kKinds) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      std::mt19937_64 rng(seed);
      const Case c(kind, rng);
      const std::string what = StrCat("seed ", seed, ": ", c.ToString());
      ExecutionContext context;
      context.thread_pool = &DefaultThreadPool();
      const Op& op = **OpRegistry::Global().Get("rotary_embedding");
      const Status status = RunOp(op, Platform::kHost, c.call(), context);
      ASSERT_TRUE(status.ok()) << status.ToString() << "\n" << what;
      c.ExpectRight(c.results, what);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace xla_gpu::rotary_embedding
