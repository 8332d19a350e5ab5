// When prefill over fp8 or f32 reads a copy, and how large that may be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/cuda/tensor_map.h"
#include "src/ops/paged_attention/cuda/config_parts.h"
#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::Contains;
using testing::Not;

TEST(Config, HopperCopiesCachesOfFp8) {
  Problem problem = MakePrefill();
  problem.cache_dtype = DType::kF8E4M3FN;
  const auto tokens = [](const Problem& problem) {
    const Config config = Choose(problem, kH200);
    const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
    const int64_t bytes = config.copy_tokens * problem.kv_heads * problem.head_dim * 2;
    EXPECT_GE(layout.copied_values - layout.copied_keys, bytes);
    EXPECT_GE(layout.carry - layout.copied_values, bytes);
    EXPECT_EQ(MakeLaunches(problem, config).attend.size(), config.copy_tokens > 0 ? 3u : 2u);
    return config.copy_tokens;
  };
  EXPECT_EQ(tokens(problem), 65536);
  const auto expect = [&](auto change, int64_t expected) {
    Problem other = problem;
    change(other);
    EXPECT_EQ(tokens(other), expected);
  };
  expect([](Problem& p) { p.tokens = 200; }, 3 * 4096);  // of 4 heads: 3 times 257 rows
  expect([](Problem& p) { p.max_seqs = 3, p.page_size = 7; }, 3 * 256 * 7);
  expect([](Problem& p) { p.batch_invariant = true; }, 0);
  expect([](Problem& p) { p.out_dtype = DType::kF32; }, 0);
  EXPECT_EQ(Choose(MakePrefill(), kH200).copy_tokens, 0);
  problem.max_seqs = 4;
  const Launches launches = MakeLaunches(problem, Choose(problem, kH200));
  EXPECT_THAT(launches.attend[0].spec.defines, Contains("CACHE_TYPE=E4M3"));
  for (const char* define : {"CACHE_TYPE=BF16", "BOXES=1", "CLUSTER=2", "COPIED=1"}) {
    EXPECT_THAT(launches.attend[1].spec.defines, Contains(define));
  }
  EXPECT_EQ(PlanParams(problem, Choose(problem, kH200)).params.copied_tile_rows, 256);
}

// Of f32 the copy is of terms, and what has none is left to attend.
TEST(Config, HopperCopiesTermsOfF32) {
  Problem problem = MakePrefill(DType::kF32);
  problem.page_size = 7;
  problem.max_seqs = 4;
  const Config config = Choose(problem, kH200);
  EXPECT_TRUE(config.prefill_launch);
  EXPECT_FALSE(config.decode_launch);
  EXPECT_EQ(config.copy_tokens, 4 * 7 * 256);
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  const int64_t bytes = config.copy_tokens * problem.kv_heads * problem.head_dim * 2;
  EXPECT_GE(layout.copied_values - layout.copied_keys, bytes * kTermsOfDots);
  EXPECT_GE(layout.carry - layout.copied_values, bytes * kTermsOfValues);

  const Launches launches = MakeLaunches(problem, config);
  ASSERT_EQ(launches.attend.size(), 3u);
  EXPECT_EQ(launches.attend[0].spec.entry, "paged_attention_copy_terms");
  for (const char* define :
       {"QUERY_TYPE=float", "CACHE_TYPE=BF16", "TILE_KEYS=64", "CLUSTER=2", "COPIED=1"}) {
    EXPECT_THAT(launches.attend[1].spec.defines, Contains(define));
  }
  EXPECT_LE(launches.attend[1].config.dynamic_shared_bytes + 1024,
            kH200.max_shared_memory_per_block);
  EXPECT_THAT(launches.attend[2].spec.defines, Contains("BEHIND_PREFILL=1"));
  EXPECT_THAT(launches.attend[2].spec.defines, Not(Contains("REDO_ONLY")));  // what has no copy
  EXPECT_THAT(launches.attend[2].spec.defines, Contains("CACHE_TYPE=float"));

  const Params p = PlanParams(problem, config).params;
  EXPECT_EQ(p.copied_only, 1);
  EXPECT_EQ(p.own_work, 0);
  EXPECT_EQ(p.copied_workers, 66);
  EXPECT_EQ(p.copied_tile_rows, 256);
  EXPECT_EQ(p.prefill_tile_rows, config.tile_rows);
  EXPECT_EQ(p.prefill_workers, config.workers);

  for (const auto& [head_dim, taken] :
       {std::pair{64, true}, {96, false}, {128, true}, {256, false}}) {
    const Problem other = MakePrefill(DType::kF32, head_dim);
    EXPECT_EQ(Choose(other, kH200).prefill_launch, taken) << head_dim;
    EXPECT_FALSE(Choose(other, kA100).prefill_launch) << head_dim;
  }
  for (const auto change : {+[](Problem& p) { p.batch_invariant = true; },
                            +[](Problem& p) { p.out_dtype = DType::kBF16; },
                            +[](Problem& p) {
                              p.tokens = 32;
                              p.max_seqs = 1;
                              p.page_size = 1;
                            }}) {
    Problem other = problem;
    change(other);
    const Config without = Choose(other, kH200);
    EXPECT_FALSE(without.prefill_launch);
    EXPECT_EQ(MakeLaunches(other, without).attend.size(), 1u);
    EXPECT_EQ(PlanParams(other, without).params.copied_only, 0);
  }
}

// A box is kCopyTokens tokens of a head, in a row.
TEST(Config, BoxesOfTheCopyAreContiguous) {
  for (const auto& [dtype, head_dim] : {std::pair{DType::kF16, int64_t{64}},
                                        {DType::kF16, 128},
                                        {DType::kF32, 64},
                                        {DType::kF32, 128}}) {
    Problem problem = MakePrefill(dtype, head_dim);
    const bool terms = dtype == DType::kF32;
    if (!terms) problem.cache_dtype = DType::kF8E5M2;
    const int64_t tokens = Choose(problem, kH200).copy_tokens;
    const cuda::TensorMapSpec boxes = MakeBoxes(CopyOf(problem, tokens));
    EXPECT_TRUE(cuda::IsAccepted(boxes));
    EXPECT_EQ(boxes.dims[4],
              static_cast<uint64_t>(tokens / kCopyTokens * (terms ? kTermsOfValues : 1)));
    EXPECT_EQ(boxes.box[1] * boxes.box[3], static_cast<uint32_t>(kCopyTokens));
    EXPECT_EQ(boxes.box[0] * boxes.box[2], static_cast<uint32_t>(head_dim));
    const uint64_t bytes = static_cast<uint64_t>(kCopyTokens * head_dim * 2);
    EXPECT_EQ(boxes.strides[1] * static_cast<uint64_t>(kCopyTokens * head_dim / 64), bytes);
    EXPECT_EQ(boxes.strides[3], bytes * 8);
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
