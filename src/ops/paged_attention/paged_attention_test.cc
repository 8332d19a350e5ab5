// Types and attributes of a call: what is accepted, and the message for everything that is not.
#include "src/ops/paged_attention/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "src/ops/paged_cache/typed_call_test_util.h"

namespace xla_gpu::paged_attention {
namespace {

using paged_cache::BadInput;
using paged_cache::TypedCall;

TypedCall MakeCall() {
  return {"paged_attention",
          {{"query", {DType::kF32, {6, 8, 64}}},
           {"kv_cache", {DType::kBF16, {10, 16, 4, 64}}},
           {"context_lens", {DType::kI32, {3}}},
           {"block_tables", {DType::kI32, {3, 5}}},
           {"query_start_loc", {DType::kI32, {4}}},
           {"num_seqs", {DType::kI32, {1}}}},
          {{"scale", 0.125}}};
}

TEST(PagedAttention, ResultTypes) {
  TypedCall call = MakeCall();
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{{DType::kF32, {6, 8, 64}}}));
  call.attrs["return_lse"] = true;
  call.attrs["out_dtype"] = std::string_view("bf16");
  EXPECT_EQ(*call.Infer(),
            (std::vector<TensorSpec>{{DType::kBF16, {6, 8, 64}}, {DType::kF32, {6, 8}}}));
  const auto on_cuda = *call.Infer(Platform::kCuda);
  ASSERT_EQ(on_cuda.size(), 3u);
  EXPECT_EQ(on_cuda[2].dtype, DType::kU8);
  EXPECT_GE(on_cuda[2].shape[0], 16);
}

TEST(PagedAttention, CacheLayouts) {
  TypedCall call = MakeCall();
  const Problem interleaved = *call.With(ProblemFromCall);
  EXPECT_EQ(interleaved.kv_heads, 2);
  EXPECT_EQ(interleaved.k.offset, 0);
  EXPECT_EQ(interleaved.v.offset, 64);
  EXPECT_EQ(interleaved.k.head_stride, 128);
  EXPECT_EQ(interleaved.v.token_stride, 256);
  EXPECT_EQ(interleaved.v.page_stride, 4096);
  EXPECT_FALSE(interleaved.separate_v);

  call.args["v_cache"] = call.args["kv_cache"];
  const Problem pair = *call.With(ProblemFromCall);
  EXPECT_EQ(pair.kv_heads, 4);
  EXPECT_EQ(pair.v.offset, 0);
  EXPECT_EQ(pair.v.head_stride, 64);
  EXPECT_EQ(pair.v.token_stride, 256);
  EXPECT_TRUE(pair.separate_v);

  call.args.erase("v_cache");
  call.args["kv_cache"].shape = {2, 10, 16, 4, 64};
  const Problem stacked = *call.With(ProblemFromCall);
  EXPECT_EQ(stacked.num_pages, 10);
  EXPECT_EQ(stacked.v.offset, 10 * 16 * 4 * 64);
  EXPECT_EQ(stacked.v.page_stride, 16 * 4 * 64);
  EXPECT_FALSE(stacked.separate_v);
}

TEST(PagedAttention, AttributesMayBeLeftOut) {
  TypedCall call = MakeCall();
  call.attrs.clear();
  const Problem problem = *call.With(ProblemFromCall);
  EXPECT_EQ(problem.scale, 1 / std::sqrt(static_cast<float>(problem.head_dim)));
  EXPECT_EQ(problem.sliding_window, 0);
  EXPECT_EQ(problem.soft_cap, 0.0f);
}

TEST(PagedAttention, BatchInvariantCallsKnowNoPromise) {
  TypedCall call = MakeCall();
  EXPECT_EQ(call.With(ProblemFromCall)->max_query_len, 0);
  call.attrs["max_query_len"] = int64_t{3};
  EXPECT_EQ(call.With(ProblemFromCall)->max_query_len, 3);
  call.attrs["batch_invariant"] = true;
  EXPECT_EQ(call.With(ProblemFromCall)->max_query_len, 0);
}

TEST(PagedAttention, AttributesReachTheProblem) {
  TypedCall call = MakeCall();
  call.attrs["scale"] = int64_t{2};  // an int stands for a float
  call.attrs["sliding_window"] = std::numeric_limits<int64_t>::max();
  call.attrs["soft_cap"] = 30.0;
  call.attrs["causal"] = false;
  call.args["sinks"] = {DType::kF32, {8}};
  call.args["k_scale"] = {DType::kF32, {1}};
  call.args["v_scale"] = {DType::kF32, {2}};
  const Problem problem = *call.With(ProblemFromCall);
  EXPECT_EQ(problem.scale, 2.0f);
  EXPECT_EQ(problem.sliding_window, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(problem.soft_cap, 30.0f);
  EXPECT_FALSE(problem.causal);
  EXPECT_TRUE(problem.has_sinks);
  EXPECT_EQ(problem.k_scale_size, 1);
  EXPECT_EQ(problem.v_scale_size, 2);
  EXPECT_FALSE(problem.has_token_scales());
  EXPECT_EQ(problem.group_size(), 4);
}

TEST(PagedAttention, EmptyTensorsAreAllowed) {
  TypedCall call = MakeCall();
  call.args["query"].shape[0] = 0;
  call.args["kv_cache"].shape[0] = 0;
  call.args["context_lens"].shape = {0};
  call.args["block_tables"].shape = {0, 0};
  call.args["query_start_loc"].shape = {1};
  EXPECT_TRUE(call.Infer().ok());
}

class PagedAttentionBadInput : public ::testing::TestWithParam<BadInput> {};
TEST_P(PagedAttentionBadInput, GivesItsMessage) { ExpectRefused(MakeCall(), GetParam()); }

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const BadInput kBadInputs[] = {
    {"QueryDtype", [](TypedCall& c) { c.args["query"].dtype = DType::kI32; },
     "query is i32[6,8,64]; its dtype must be f32, bf16 or f16"},
    {"QueryF64", [](TypedCall& c) { c.args["query"].dtype = DType::kF64; },
     "query is f64[6,8,64]; its dtype must be"},
    {"QueryRank",
     [](TypedCall& c) {
       c.args["query"].shape = {6, 512};
     },
     "query is f32[6,512]; it must be [tokens, q_heads, head_dim], of rank 3"},
    {"QueryHeadDim", [](TypedCall& c) { c.args["query"].shape[2] = 96; },
     "head_dim is 96 in query f32[6,8,96] but 64 in kv_cache bf16[10,16,4,64]; they must be equal"},
    {"QueryHeads", [](TypedCall& c) { c.args["query"].shape[1] = 7; },
     "has 7 heads and kv_cache bf16[10,16,4,64] has 2 kv heads; q_heads must be a multiple"},
    {"NoQueryHeads", [](TypedCall& c) { c.args["query"].shape[1] = 0; }, "has 0 heads"},
    {"TooManyQueryHeads", [](TypedCall& c) { c.args["query"].shape[1] = 1 << 17; },
     "q_heads must be a multiple of kv_heads, at most 65536"},
    {"TooManyTokens", [](TypedCall& c) { c.args["query"].shape[0] = int64_t{1} << 31; },
     "at most 2^31-1 tokens"},
    {"CacheDtype", [](TypedCall& c) { c.args["kv_cache"].dtype = DType::kI8; },
     "kv_cache is i8[10,16,4,64]; its dtype must be f32, bf16, f16, f8e4m3fn or f8e5m2"},
    {"CacheRank",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {10, 16, 64};
     },
     "kv_cache is bf16[10,16,64] of rank 3; it must be"},
    {"CacheOddHeads", [](TypedCall& c) { c.args["kv_cache"].shape[2] = 3; },
     "with 3 heads; without v_cache it holds 2*kv_heads"},
    {"CacheNoHeads", [](TypedCall& c) { c.args["kv_cache"].shape[2] = 0; }, "0 kv heads"},
    {"CacheLeadingTwo",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {3, 10, 16, 4, 64};
     },
     "of its 5 dimensions the first must be 2"},
    {"CachePageSizeZero", [](TypedCall& c) { c.args["kv_cache"].shape[1] = 0; },
     "10 pages of 0 tokens; page_size must be 1 to 2^31-1"},
    {"CacheHeadDimZero", [](TypedCall& c) { c.args["kv_cache"].shape[3] = 0; },
     "head_dim is 0 in kv_cache bf16[10,16,4,0]; allowed are 1 to 512"},
    {"CacheHeadDimLarge",
     [](TypedCall& c) { c.args["kv_cache"].shape[3] = c.args["query"].shape[2] = 513; },
     "head_dim is 513"},
    {"CacheTooManyPages",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {int64_t{1} << 32, 1, 2, 1};
     },
     "2^31-1 pages"},
    {"CacheOverflow",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {int64_t{1} << 40, 1 << 20, 4, 64};
     },
     "does not fit 63 bits"},
    {"NegativeDimension", [](TypedCall& c) { c.args["query"].shape[0] = -1; },
     "dimensions must not be negative"},
    {"VCacheShape",
     [](TypedCall& c) {
       c.args["v_cache"] = {DType::kBF16, {10, 16, 2, 64}};
     },
     "v_cache is bf16[10,16,2,64]; with v_cache both must be"},
    {"VCacheDtype",
     [](TypedCall& c) {
       c.args["v_cache"] = {DType::kF16, {10, 16, 4, 64}};
     },
     "v_cache is f16[10,16,4,64]; with v_cache both must be"},
    {"VCacheWithStackedCache",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {2, 10, 16, 4, 64};
       c.args["v_cache"] = c.args["kv_cache"];
     },
     "with v_cache both must be"},
    {"ContextLensDtype", [](TypedCall& c) { c.args["context_lens"].dtype = DType::kI64; },
     "context_lens is i64[3]; its dtype must be i32"},
    {"ContextLensShape", [](TypedCall& c) { c.args["context_lens"].shape = {4}; },
     "context_lens is i32[4]; it must be i32[3]"},
    {"BlockTablesDtype", [](TypedCall& c) { c.args["block_tables"].dtype = DType::kU32; },
     "block_tables is u32[3,5]; its dtype must be i32"},
    {"BlockTablesRank", [](TypedCall& c) { c.args["block_tables"].shape = {15}; },
     "block_tables is i32[15]; it must be"},
    {"BlockTablesTooWide",
     [](TypedCall& c) {
       c.args["block_tables"].shape = {3, int64_t{1} << 31};
     },
     "its dimensions must be less than 2^31-1"},
    {"QueryStartLocShape", [](TypedCall& c) { c.args["query_start_loc"].shape = {3}; },
     "query_start_loc is i32[3]; it must be i32[4] ([max_seqs + 1]"},
    {"NumSeqsShape", [](TypedCall& c) { c.args["num_seqs"].shape = {}; },
     "num_seqs is i32[]; it must be i32[1] (one number)"},
    {"SinksShape",
     [](TypedCall& c) {
       c.args["sinks"] = {DType::kF32, {2}};
     },
     "sinks is f32[2]; it must be f32[8], one per q head"},
    {"SinksDtype",
     [](TypedCall& c) {
       c.args["sinks"] = {DType::kBF16, {8}};
     },
     "sinks is bf16[8]; its dtype must be f32"},
    {"KScaleShape",
     [](TypedCall& c) {
       c.args["k_scale"] = {DType::kF32, {8}};
     },
     "k_scale is f32[8]; it must be f32[1], one for each kv head, f32[2], or one for each token "
     "and kv head in the cache, f32[10,16,2]"},
    {"KScaleOfOtherPages",
     [](TypedCall& c) {
       c.args["k_scale"] = {DType::kF32, {9, 16, 2}};
     },
     "k_scale is f32[9,16,2]; it must be f32[1]"},
    {"VScaleScalar",
     [](TypedCall& c) {
       c.args["v_scale"] = {DType::kF32, {}};
     },
     "v_scale is f32[]; it must be f32[1]"},
    {"ScaleNaN", [](TypedCall& c) { c.attrs["scale"] = kNaN; },
     "attribute 'scale' is nan; it must be a finite number from -1e+20 to 1e+20, or left out for "
     "1/sqrt(head_dim)"},
    {"ScaleBeyondF32", [](TypedCall& c) { c.attrs["scale"] = 1e300; },
     "attribute 'scale' is 1e+300; it must be a finite number from -1e+20 to 1e+20"},
    {"ScaleTooLarge", [](TypedCall& c) { c.attrs["scale"] = -2.4e38; },
     "attribute 'scale' is -2.4e+38; it must be a finite number from -1e+20 to 1e+20"},
    {"ScaleString", [](TypedCall& c) { c.attrs["scale"] = std::string_view("0.1"); },
     "attribute 'scale' is string \"0.1\"; it must be float"},
    {"WindowNegative", [](TypedCall& c) { c.attrs["sliding_window"] = int64_t{-1}; },
     "attribute 'sliding_window' is -1; it must be at least 1, or left out for no window"},
    {"WindowZero", [](TypedCall& c) { c.attrs["sliding_window"] = int64_t{0}; },
     "attribute 'sliding_window' is 0; it must be at least 1, or left out for no window"},
    {"QueriesNegative", [](TypedCall& c) { c.attrs["max_query_len"] = int64_t{-1}; },
     "attribute 'max_query_len' is -1; it must be at least 1, or 0 where it is unknown"},
    {"WindowFloat", [](TypedCall& c) { c.attrs["sliding_window"] = 4.0; },
     "attribute 'sliding_window' is float 4; it must be int"},
    {"SoftCapNegative", [](TypedCall& c) { c.attrs["soft_cap"] = -1.0; },
     "attribute 'soft_cap' is -1; it must be a finite number from 1e-20 to 1e+20, or left out for "
     "no cap"},
    {"SoftCapZero", [](TypedCall& c) { c.attrs["soft_cap"] = 0.0; },
     "attribute 'soft_cap' is 0; it must be a finite number from 1e-20 to 1e+20, or left out"},
    {"SoftCapTiny", [](TypedCall& c) { c.attrs["soft_cap"] = 1e-40; },
     "attribute 'soft_cap' is 1e-40; it must be a finite number from 1e-20 to 1e+20, or left"},
    {"SoftCapSubnormalF64", [](TypedCall& c) { c.attrs["soft_cap"] = 1e-320; },
     "; it must be a finite number from 1e-20 to 1e+20, or left"},
    {"SoftCapHuge", [](TypedCall& c) { c.attrs["soft_cap"] = 2.4e38; },
     "attribute 'soft_cap' is 2.4e+38; it must be a finite number from 1e-20 to 1e+20, or left"},
    {"CausalInt", [](TypedCall& c) { c.attrs["causal"] = int64_t{1}; },
     "attribute 'causal' is int 1; it must be bool"},
    {"OutDtypeUnknown", [](TypedCall& c) { c.attrs["out_dtype"] = std::string_view("half"); },
     "attribute 'out_dtype' is \"half\"; it must be f32, bf16 or f16, or empty"},
    {"OutDtypeFp8", [](TypedCall& c) { c.attrs["out_dtype"] = std::string_view("f8e4m3fn"); },
     "attribute 'out_dtype' is \"f8e4m3fn\"; it must be f32, bf16 or f16"},
    {"UnknownAttribute", [](TypedCall& c) { c.attrs["softcap"] = 1.0; },
     "unknown attribute 'softcap'; known are: scale, sliding_window, soft_cap"},
    {"MissingArgument", [](TypedCall& c) { c.args.erase("num_seqs"); },
     "5 arguments came but 6 are expected: query, kv_cache, context_lens"},
    {"OptionalArgsUnknown",
     [](TypedCall& c) { c.attrs["optional_args"] = std::string_view("alibi"); },
     "attribute 'optional_args' has 'alibi' left over"},
    {"OptionalArgsWithoutArgument",
     [](TypedCall& c) { c.attrs["optional_args"] = std::string_view("sinks"); },
     "6 arguments came but 7 are expected"},
};

INSTANTIATE_TEST_SUITE_P(All, PagedAttentionBadInput, ::testing::ValuesIn(kBadInputs),
                         paged_cache::BadInputName);

}  // namespace
}  // namespace xla_gpu::paged_attention
