// Types of a call of grouped_matmul: what is accepted, and the message for everything that is not.
#include "src/ops/grouped_matmul/grouped_matmul.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/ops/paged_cache/typed_call_test_util.h"

namespace xla_gpu::grouped_matmul {
namespace {

using paged_cache::BadInput;
using paged_cache::TypedCall;

TypedCall MakeCall() {
  return {"grouped_matmul",
          {{"lhs", {DType::kBF16, {6, 32}}},
           {"rhs", {DType::kBF16, {3, 32, 64}}},
           {"group_sizes", {DType::kI32, {3}}}}};
}

TEST(GroupedMatmul, TheResultHasRowsAndColumns) {
  TypedCall call = MakeCall();
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{{DType::kBF16, {6, 64}}}));
  call.attrs["out_dtype"] = std::string_view("f32");
  EXPECT_EQ(*call.Infer(), (std::vector<TensorSpec>{{DType::kF32, {6, 64}}}));
}

TEST(GroupedMatmul, WhatIsAllowed) {
  TypedCall call = MakeCall();
  call.args["rhs"].dtype = DType::kI8;
  for (const int64_t blocks : {1, 2, 32}) {
    call.args["rhs_scale"] = {DType::kF32, {3, blocks, 64}};
    EXPECT_TRUE(call.Infer().ok());
  }
  call.args["lhs"].shape[0] = 0;
  EXPECT_TRUE(call.Infer().ok());
  call = MakeCall();
  call.args["rhs"].shape = {0, 32, 0};
  call.args["group_sizes"].shape[0] = 0;
  EXPECT_TRUE(call.Infer().ok());
}

class GroupedMatmulBadInput : public ::testing::TestWithParam<BadInput> {};
TEST_P(GroupedMatmulBadInput, GivesItsMessage) { ExpectRefused(MakeCall(), GetParam()); }

const BadInput kBadInputs[] = {
    {"LhsDtype", [](TypedCall& c) { c.args["lhs"].dtype = DType::kI8; },
     "lhs is i8[6,32]; its dtype must be f32, bf16 or f16"},
    {"LhsRank", [](TypedCall& c) { c.args["lhs"].shape = {6}; }, "lhs is bf16[6]; it must be"},
    {"LhsEmptyRows", [](TypedCall& c) { c.args["lhs"].shape[1] = c.args["rhs"].shape[1] = 0; },
     "lhs is bf16[6,0]; it must be [rows, K] with K of at least 1"},
    {"RhsInner", [](TypedCall& c) { c.args["rhs"].shape[1] = 31; },
     "rhs is bf16[3,31,64]; it must be [groups, 32, N], K being that of lhs bf16[6,32]"},
    {"RhsRank",
     [](TypedCall& c) {
       c.args["rhs"].shape = {32, 64};
     },
     "rhs is bf16[32,64]; it must"},
    {"RhsDtype", [](TypedCall& c) { c.args["rhs"].dtype = DType::kF16; },
     "rhs is f16[3,32,64]; its dtype must be f8e4m3fn, f8e5m2, i8 or that of lhs"},
    {"Sizes", [](TypedCall& c) { c.args["group_sizes"].shape[0] = 2; },
     "group_sizes is i32[2]; it must be i32[3], one size for each group of rhs"},
    {"SizesDtype", [](TypedCall& c) { c.args["group_sizes"].dtype = DType::kI64; },
     "group_sizes is i64[3]; its dtype must be i32"},
    {"ScaleBlocks",
     [](TypedCall& c) {
       c.args["rhs_scale"] = {DType::kF32, {3, 5, 64}};
     },
     "rhs_scale is f32[3,5,64]; it must be f32[3, blocks, 64], blocks dividing the 32 rows of rhs"},
    {"ScaleColumns",
     [](TypedCall& c) {
       c.args["rhs_scale"] = {DType::kF32, {3, 1, 1}};
     },
     "rhs_scale is f32[3,1,1]; it must be"},
    {"OutDtype", [](TypedCall& c) { c.attrs["out_dtype"] = std::string_view("i8"); }, "out_dtype"}};
INSTANTIATE_TEST_SUITE_P(All, GroupedMatmulBadInput, testing::ValuesIn(kBadInputs),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace xla_gpu::grouped_matmul
