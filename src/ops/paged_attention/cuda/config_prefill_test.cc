// How many rows a block of Hopper's prefill has, and how many blocks share keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::Contains;

TEST(Config, BlocksOfLongPromptsShareKeysInPairs) {
  Problem problem = MakePrefill();
  problem.max_seqs = 4;
  const auto together = [](const Problem& p) { return Choose(p, kH200).prefill_blocks; };
  const Config config = Choose(problem, kH200);
  EXPECT_EQ(config.prefill_blocks, 2);
  EXPECT_EQ(config.prefill_workers, 66);
  EXPECT_EQ(PlanParams(problem, config).params.prefill_tile_rows, 256);
  const KernelLaunch prefill = MakeLaunches(problem, config).attend[0];
  EXPECT_EQ(prefill.config.grid[0], 132u);
  EXPECT_THAT(prefill.spec.defines, Contains("CLUSTER=2"));
  Problem other = problem;
  other.kv_heads = other.q_heads;
  EXPECT_EQ(together(other), 1);
  for (const int seqs : {16, 64}) {  // of 128 tokens, and of 32
    other = problem;
    other.max_seqs = seqs;
    EXPECT_EQ(together(other), 1);
  }
  other = problem;
  other.page_size = 20;  // no boxes
  EXPECT_EQ(together(other), 1);
}

// Where these are no more than two pieces for each multiprocessor.
TEST(Config, PrefillTakesFewSequencesOfFewRows) {
  const auto rows = [](int64_t seqs, auto change) {
    Problem problem = MakePrefill();
    problem.max_seqs = seqs;
    change(problem);
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.prefill_launch);
    EXPECT_TRUE(!config.decode_launch || config.decode_max_rows > 0);
    return config.decode_max_rows;
  };
  const auto same = [](Problem&) {};
  EXPECT_EQ(rows(1, same), 0);
  EXPECT_EQ(rows(32, same), 0);
  EXPECT_EQ(rows(33, same), 16);
  EXPECT_EQ(rows(32, [](Problem& p) { p.head_dim = 96; }), 0);
  EXPECT_EQ(rows(33, [](Problem& p) { p.head_dim = 96; }), 16);
  EXPECT_EQ(rows(16, [](Problem& p) { p.kv_heads = 16; }), 0);
  EXPECT_EQ(rows(17, [](Problem& p) { p.kv_heads = 16; }), 16);
  EXPECT_EQ(rows(1, [](Problem& p) { p.batch_invariant = true; }), 16);  // parts of its own keys
  EXPECT_EQ(rows(1, [](Problem& p) { p.cache_dtype = DType::kF8E4M3FN; }), 16);
  // A table may ask for a launch of decode.
  Problem problem = MakePrefill();
  problem.max_seqs = 16;
  const auto configs = Alternatives(problem, kH200);
  EXPECT_EQ(NameOf(configs->front()), "prefill+attend");
  const auto decodes = std::ranges::find(*configs, std::string("prefill+attend+decode"), NameOf);
  ASSERT_NE(decodes, configs->end());
  EXPECT_EQ(decodes->decode_max_rows, 16);
}

// Of sequences that may have more keys than registers add up.
TEST(Config, PrefillHasASecondLevelWhereContextsAreLong) {
  const auto levels = [](int64_t keys, DType query, DType cache, DType out,
                         int64_t head_dim = 128) {
    Problem problem = MakePrefill(query, head_dim);
    problem.cache_dtype = cache;
    problem.out_dtype = out;
    problem.max_pages_per_seq = CeilDiv(keys, problem.page_size);
    std::string all;
    for (const KernelLaunch& launch : MakeLaunches(problem, Choose(problem, kH200)).attend) {
      for (const std::string& define : launch.spec.defines) {
        if (define.starts_with("LEVEL_TILES=")) all += define.substr(12) + " ";
      }
    }
    return all;
  };
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;
  constexpr DType kE4M3 = DType::kF8E4M3FN;
  EXPECT_EQ(levels(32768 + 128, kBF16, kBF16, kBF16), "0 ");
  EXPECT_EQ(levels(32768 + 144, kBF16, kBF16, kBF16), "256 ");
  EXPECT_EQ(levels(410 * 80, kBF16, kBF16, kBF16, 256), "0 ");
  EXPECT_EQ(levels(411 * 80, kBF16, kBF16, kBF16, 256), "409 ");
  EXPECT_EQ(levels(8192 + 128, kF16, kF16, kF16), "0 ");
  EXPECT_EQ(levels(8192 + 144, kF16, kF16, kF16), "64 ");
  EXPECT_EQ(levels(8192 + 144, kBF16, kBF16, kF32), "64 ");
  EXPECT_EQ(levels(32768 + 128, kF16, kF16, kF32), "0 ");  // f32 additions add up tiles
  EXPECT_EQ(levels(32768 + 144, kF16, kF16, kF32), "256 ");
  EXPECT_EQ(levels(32768 + 128, kBF16, kE4M3, kBF16), "0 0 ");  // those of the copy
  EXPECT_EQ(levels(32768 + 144, kBF16, kE4M3, kBF16), "256 256 ");
  EXPECT_EQ(levels(4096 + 64, kF32, kF32, kF32), "0 ");
  EXPECT_EQ(levels(4096 + 80, kF32, kF32, kF32), "64 ");
}

TEST(Config, LongPromptsOfHeadsOfOnePanelTakeThreeWarpgroups) {
  const auto rows = [](auto change) {
    Problem problem = MakePrefill(DType::kBF16, 64);
    problem.max_seqs = 4;
    problem.tokens = 4 * 1024;
    change(problem);
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.prefill_launch);
    const Launches launches = MakeLaunches(problem, config);
    const KernelLaunch& prefill = *std::prev(launches.attend.end(), 2);
    const Params p = PlanParams(problem, config).params;
    const bool copied = config.copy_tokens > 0;
    const int rows = copied ? p.copied_tile_rows : p.prefill_tile_rows;
    EXPECT_EQ(prefill.config.block[0], rows == 192 ? 512u : 384u);
    EXPECT_LE(prefill.config.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
    EXPECT_THAT(prefill.spec.defines, Contains(StrCat("TILE_ROWS=", rows)));
    if (copied) {
      EXPECT_EQ(p.prefill_tile_rows, 128);
    }
    return rows;
  };
  const auto same = [](Problem&) {};
  EXPECT_EQ(rows(same), 192);
  EXPECT_EQ(rows([](Problem& p) { p.head_dim = 40; }), 192);
  EXPECT_EQ(rows([](Problem& p) { p.page_size = 20; }), 192);  // no boxes
  EXPECT_EQ(rows([](Problem& p) { p.cache_dtype = DType::kF8E4M3FN; }), 192);
  EXPECT_EQ(rows([](Problem& p) { p.max_seqs = 10; }), 192);  // beside decode
  EXPECT_EQ(rows([](Problem& p) { p.max_seqs = 11; }), 128);
  EXPECT_EQ(rows([](Problem& p) { p.sliding_window = 384; }), 192);
  EXPECT_EQ(rows([](Problem& p) { p.sliding_window = 383; }), 128);
  EXPECT_EQ(rows([](Problem& p) { p.max_seqs = 1, p.tokens = 1584; }), 192);
  EXPECT_EQ(rows([](Problem& p) { p.max_seqs = 1, p.tokens = 1583; }), 128);
  EXPECT_EQ(rows([](Problem& p) { p.soft_cap = 50; }), 128);
  EXPECT_EQ(rows([](Problem& p) { p.out_dtype = DType::kF32; }), 128);
}

}  // namespace
}  // namespace xla_gpu::paged_attention
