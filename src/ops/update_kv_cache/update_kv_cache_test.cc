// Types of a call of update_kv_cache: what is accepted, and the message for everything that is not.
#include "src/ops/update_kv_cache/update_kv_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/ops/paged_cache/typed_call_test_util.h"

namespace xla_gpu::update_kv_cache {
namespace {

using paged_cache::BadInput;
using paged_cache::TypedCall;

TypedCall MakeCall() {
  return {"update_kv_cache",
          {{"key", {DType::kBF16, {6, 2, 64}}},
           {"value", {DType::kBF16, {6, 2, 64}}},
           {"kv_cache", {DType::kF8E4M3FN, {10, 16, 4, 64}}},
           {"slot_mapping", {DType::kI32, {6}}}}};
}

TEST(UpdateKvCache, ResultsAreTheCaches) {
  TypedCall call = MakeCall();
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{call.args["kv_cache"]}));
  call.args["kv_cache"].shape = {2, 10, 16, 2, 64};
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{call.args["kv_cache"]}));
  call.args["kv_cache"].shape = {10, 16, 2, 64};
  call.args["v_cache"] = call.args["kv_cache"];
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{call.args["kv_cache"], call.args["kv_cache"]}));
  const Op& op = **OpRegistry::Global().Get("update_kv_cache");
  EXPECT_EQ(op.results[0].alias_of, "kv_cache");
  EXPECT_EQ(op.results[1].alias_of, "v_cache");
}

TEST(UpdateKvCache, WhatIsAllowed) {
  TypedCall call = MakeCall();
  call.args["slot_mapping"].dtype = DType::kI64;
  call.args["k_scale"] = {DType::kF32, {1}};
  call.args["v_scale"] = {DType::kF32, {2}};
  EXPECT_TRUE(call.Infer().ok());
  call.args["k_scale"] = {DType::kF32, {10, 16, 2}};
  EXPECT_TRUE(call.Infer().ok());
  call.args["key"].shape[0] = call.args["value"].shape[0] = 0;
  call.args["slot_mapping"].shape[0] = 0;
  EXPECT_TRUE(call.Infer().ok());
}

class UpdateKvCacheBadInput : public ::testing::TestWithParam<BadInput> {};
TEST_P(UpdateKvCacheBadInput, GivesItsMessage) { ExpectRefused(MakeCall(), GetParam()); }

const BadInput kBadInputs[] = {
    {"KeyDtype", [](TypedCall& c) { c.args["key"].dtype = DType::kF8E4M3FN; },
     "key is f8e4m3fn[6,2,64]; its dtype must be f32, bf16 or f16"},
    {"KeyRank",
     [](TypedCall& c) {
       c.args["key"].shape = {6, 128};
     },
     "key is bf16[6,128]; it must be"},
    {"KeyHeads", [](TypedCall& c) { c.args["key"].shape[1] = 4; },
     "[tokens, 2, 64], the kv heads and head_dim of kv_cache f8e4m3fn[10,16,4,64]"},
    {"KeyHeadDim", [](TypedCall& c) { c.args["key"].shape[2] = 32; },
     "key is bf16[6,2,32]; it must be"},
    {"ValueShape", [](TypedCall& c) { c.args["value"].shape[0] = 5; },
     "key is bf16[6,2,64] but value is bf16[5,2,64]; they must be equal"},
    {"ValueDtype", [](TypedCall& c) { c.args["value"].dtype = DType::kF16; },
     "but value is f16[6,2,64]; they must be equal in dtype and shape"},
    {"CacheDtype", [](TypedCall& c) { c.args["kv_cache"].dtype = DType::kU8; },
     "kv_cache is u8[10,16,4,64]; its dtype must be"},
    {"CacheRank",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {10, 16, 4};
     },
     "of rank 3"},
    {"CacheOddHeads", [](TypedCall& c) { c.args["kv_cache"].shape[2] = 5; }, "with 5 heads"},
    {"CacheLeadingTwo",
     [](TypedCall& c) {
       c.args["kv_cache"].shape = {1, 10, 16, 2, 64};
     },
     "the first must be 2"},
    {"CacheHeadDim", [](TypedCall& c) { c.args["kv_cache"].shape[3] = 513; },
     "head_dim is 513 in kv_cache"},
    {"CachePageSize", [](TypedCall& c) { c.args["kv_cache"].shape[1] = 0; },
     "page_size must be 1 to 2^31-1"},
    {"VCacheShape",
     [](TypedCall& c) {
       c.args["v_cache"] = {DType::kF8E4M3FN, {9, 16, 4, 64}};
     },
     "with v_cache both must be"},
    {"VCacheDtype",
     [](TypedCall& c) {
       c.args["v_cache"] = {DType::kF8E5M2, {10, 16, 4, 64}};
     },
     "with v_cache both must be"},
    {"VCacheHeads", [](TypedCall& c) { c.args["v_cache"] = c.args["kv_cache"]; },
     "it must be f32, bf16 or f16 [tokens, 4, 64]"},
    {"SlotDtype", [](TypedCall& c) { c.args["slot_mapping"].dtype = DType::kU32; },
     "slot_mapping is u32[6]; its dtype must be i32 or i64"},
    {"SlotShape", [](TypedCall& c) { c.args["slot_mapping"].shape = {7}; },
     "slot_mapping is i32[7]; it must be i32 or i64 [6]"},
    {"SlotRank",
     [](TypedCall& c) {
       c.args["slot_mapping"].shape = {6, 1};
     },
     "slot_mapping is i32[6,1]"},
    {"KScaleDtype",
     [](TypedCall& c) {
       c.args["k_scale"] = {DType::kF16, {1}};
     },
     "k_scale is f16[1]; its dtype must be f32"},
    {"VScaleShape",
     [](TypedCall& c) {
       c.args["v_scale"] = {DType::kF32, {3}};
     },
     "v_scale is f32[3]; it must be f32[1]"},
    {"MissingArgument", [](TypedCall& c) { c.args.erase("slot_mapping"); },
     "3 arguments came but 4 are expected: key, value, kv_cache, slot_mapping"},
    {"NegativeDimension", [](TypedCall& c) { c.args["key"].shape[0] = -2; },
     "dimensions must not be negative"},
};

INSTANTIATE_TEST_SUITE_P(All, UpdateKvCacheBadInput, ::testing::ValuesIn(kBadInputs),
                         paged_cache::BadInputName);

}  // namespace
}  // namespace xla_gpu::update_kv_cache
