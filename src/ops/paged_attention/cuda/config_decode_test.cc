// The choice of Hopper's decode kernels, on the Host alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;

TEST(ConfigDecode, HopperDecodesInALaunchOfItsOwn) {
  Problem problem = MakeProblem();
  const auto takes = [](const Problem& problem, const cuda::DeviceInfo& device = kH200) {
    return Choose(problem, device).line_only;
  };
  const Config config = Choose(problem, kH200);
  EXPECT_TRUE(config.decode_launch);
  EXPECT_TRUE(config.line_only);
  EXPECT_EQ(config.decode_workers, 132);
  EXPECT_EQ(config.decode_ranges, 16);  // times 8 heads: the blocks that fit
  const Launches l = MakeLaunches(problem, config);
  ASSERT_EQ(l.attend.size(), 1u);
  EXPECT_EQ(l.attend[0].spec.source, "src/ops/paged_attention/cuda/decode_sm90.cu");
  EXPECT_EQ(l.attend[0].config.grid[0], 132u);
  EXPECT_TRUE(l.attend[0].config.programmatic);
  // It does not wait for what stands before it.
  EXPECT_THAT(l.schedule.spec.defines, Contains("LINE_ONLY=1"));
  EXPECT_FALSE(l.schedule.config.programmatic);
  EXPECT_LE(l.attend[0].config.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
  // Sizes are parameters: no other kernel is compiled for them.
  problem.page_size = 24;
  problem.sliding_window = 1000;
  problem.tokens = 60;
  EXPECT_EQ(MakeLaunches(problem, Choose(problem, kH200)).attend[0].spec.defines,
            l.attend[0].spec.defines);
  EXPECT_FALSE(takes(MakeProblem(), kA100));
  EXPECT_FALSE(takes(MakeProblem(), kB200));
  EXPECT_FALSE(takes(MakeProblem(DType::kBF16, DType::kBF16, 80)));
  EXPECT_FALSE(takes(MakeProblem(DType::kBF16, DType::kF8E4M3FN, 192)));
  EXPECT_TRUE(takes(MakeProblem(DType::kBF16, DType::kF8E4M3FN)));
  EXPECT_FALSE(takes(MakeProblem(DType::kBF16, DType::kF8E4M3FN, 64)));
  EXPECT_FALSE(takes(MakeChunks()));
  problem = MakeProblem();
  problem.batch_invariant = true;
  EXPECT_FALSE(takes(problem));
}

// All rows of a token, or of several, go over the keys at once, as far as tiles hold them.
TEST(ConfigDecode, TilesOfDecodeHoldTheRowsOfASequence) {
  struct Case {
    const char* what;
    DType cache;
    int64_t group, tokens, max_seqs;
    const char* define;
    uint32_t threads;
  };
  for (const Case& c : {Case{"a group", DType::kBF16, 8, 64, 64, "LINE_ROWS=16", 416},
                        {"a large group", DType::kBF16, 9, 64, 64, "LINE_ROWS=32", 384},
                        {"two tokens", DType::kBF16, 4, 32, 16, "LINE_ROWS=16", 416},
                        {"three tokens", DType::kBF16, 2, 60, 20, "LINE_ROWS=16", 416},
                        {"four tokens", DType::kBF16, 4, 32, 8, "LINE_ROWS=32", 384},
                        {"fp8", DType::kF8E5M2, 32, 64, 64, "LINE_ROWS=16", 416}}) {
    SCOPED_TRACE(c.what);
    Problem problem = MakeProblem(DType::kF16, c.cache);
    if (c.cache == DType::kBF16) problem = MakeProblem();
    problem.q_heads = c.group * problem.kv_heads;
    problem.tokens = c.tokens;
    problem.max_seqs = c.max_seqs;
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.line_only);
    const Launches l = MakeLaunches(problem, config);
    ASSERT_EQ(l.attend.size(), 1u);
    EXPECT_THAT(l.attend[0].spec.defines, Contains(c.define));
    EXPECT_EQ(l.attend[0].config.block[0], c.threads);
    EXPECT_LE(l.attend[0].config.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
  }
}

// A promise that sequences have no more rows than a tile, or one token each, leaves out the
// launches of longer ones, and the room that those would take.
TEST(ConfigDecode, APromiseLeavesDecodeAlone) {
  struct Case {
    const char* what;
    DType query, cache;
    int64_t head_dim, group, queries;
    const char* launches;
    const char* define;
  };
  constexpr DType kBF16 = DType::kBF16, kF8 = DType::kF8E4M3FN, kF32 = DType::kF32;
  for (const Case& c :
       {Case{"a token, padding", kBF16, kBF16, 128, 4, 1, "decode", "LINE_ROWS=16"},
        {"a token of a large group", kBF16, kBF16, 128, 40, 1, "decode", "LINE_ROWS=32"},
        {"half a tile", kBF16, kBF16, 128, 4, 2, "decode", "LINE_ROWS=16"},
        {"a tile", kBF16, kBF16, 128, 4, 8, "decode", "LINE_ROWS=32"},
        {"more", kBF16, kBF16, 128, 4, 9, "prefill+attend+decode", "LINE_ROWS=16"},
        {"a tile of fp8", kBF16, kF8, 128, 4, 4, "decode", "LINE_ROWS=16"},
        {"more of fp8", kBF16, kF8, 128, 4, 5, "prefill+attend", nullptr},
        {"half a tile of wide heads", kBF16, kBF16, 256, 4, 2, "decode", "LINE_ROWS=8"},
        {"a tile of wide heads", kBF16, kBF16, 256, 4, 4, "decode", "LINE_ROWS=16"},
        {"more of wide heads", kBF16, kBF16, 256, 4, 5, "prefill+attend+decode", "LINE_ROWS=16"},
        {"f32", kF32, kF32, 128, 4, 4, "attend", nullptr}}) {
    SCOPED_TRACE(c.what);
    Problem problem = MakeProblem(c.query, c.cache, c.head_dim);
    problem.q_heads = c.group * problem.kv_heads;
    problem.tokens = 16 * problem.max_seqs;
    const int64_t bytes = WorkspaceBytes(problem);
    EXPECT_THAT(NameOf(Choose(problem, kH200)), testing::StartsWith("prefill+"));
    problem.max_query_len = c.queries;
    const Config config = Choose(problem, kH200);
    EXPECT_EQ(NameOf(config), c.launches);
    EXPECT_LE(WorkspaceBytes(problem), bytes);
    EXPECT_EQ(NameOf(Choose(problem, kB200)), "attend");
    const Launches l = MakeLaunches(problem, config);
    if (c.define == nullptr) continue;
    EXPECT_THAT(l.attend[0].spec.defines, Contains(c.define));
    const PlannedParams planned = PlanParams(problem, config);
    const Params& p = planned.params;
    EXPECT_LE(p.line_partials + 2 * p.decode_ranges * p.kv_heads * p.line_rows,
              planned.workspace.partial_capacity);
    // Longer sequences are work of the line, too.
    if (config.line_only) {
      EXPECT_EQ(p.decode_max_rows, std::numeric_limits<int>::max());
    }
  }
}

// Where pages hold no boxes warps of their own copy rows, for which there is room at all shapes.
TEST(ConfigDecode, PagesMayHaveAnySize) {
  for (const DType cache : {DType::kBF16, DType::kF8E4M3FN}) {
    for (const int64_t head_dim : {64, 128, 256, 512}) {
      if (cache != DType::kBF16 && head_dim == 64) continue;
      for (const int64_t group : {4, 16}) {
        for (const int64_t page_size : {1, 3, 12, 20}) {
          SCOPED_TRACE(testing::Message() << DTypeName(cache) << " " << head_dim << ", group of "
                                          << group << ", pages of " << page_size);
          Problem problem = MakeProblem(DType::kBF16, cache, head_dim);
          problem.q_heads = group * problem.kv_heads;
          problem.page_size = page_size;
          problem.max_pages_per_seq = 4096 / page_size;
          problem.k.page_stride = problem.v.page_stride = page_size * problem.k.token_stride;
          for (const int64_t tokens : {64, 1}) {
            problem.tokens = problem.max_seqs = tokens;
            const Config config = Choose(problem, kH200);
            EXPECT_TRUE(config.line_only);
            EXPECT_FALSE(config.boxes);
            const Launches l = MakeLaunches(problem, config);
            ASSERT_EQ(l.attend.size(), 1u);
            EXPECT_THAT(l.attend[0].spec.defines, IsSupersetOf({"BOXES=0", "PAIRS=0"}));
            EXPECT_FALSE(l.attend[0].pairs);
            EXPECT_EQ(l.attend[0].config.block[0], 512u);
            EXPECT_EQ(config.decode_cluster > 0, tokens == 1 && (head_dim <= 128 || group == 4));
            EXPECT_LE(
                l.attend[0].config.dynamic_shared_bytes + (config.decode_cluster > 0 ? 0 : 1024),
                kH200.max_shared_memory_per_block);
          }
        }
      }
    }
  }
  // Beside prefill too.
  Problem mixed = MakeChunks();
  mixed.page_size = 12;
  const Config config = Choose(mixed, kH200);
  EXPECT_EQ(NameOf(config), "prefill+attend+decode");
  for (const KernelLaunch& launch : MakeLaunches(mixed, config).attend) {
    if (launch.spec.source.ends_with("_sm90.cu")) {
      EXPECT_THAT(launch.spec.defines, Contains("BOXES=0"));
    }
  }
}

// Where longer sequences have launches of their own, each kind of work has partial results of its
// own.
TEST(ConfigDecode, MixedBatchesShareTheWorkspace) {
  const Problem problem = MakeChunks();
  const Config config = Choose(problem, kH200);
  const PlannedParams planned = PlanParams(problem, config);
  const Params& p = planned.params;
  EXPECT_GT(p.line_partials, 0);
  EXPECT_EQ(p.partial_capacity, p.line_partials);
  EXPECT_LE(p.line_partials + 2 * p.decode_ranges * p.kv_heads * p.line_rows,
            planned.workspace.partial_capacity);
  // Items have no more room where no launch takes the line.
  EXPECT_EQ(PlanParams(problem, Choose(problem, kB200)).params.partial_capacity, p.line_partials);
}

// Few tokens over contexts that half of the multiprocessors read as fast as all.
TEST(ConfigDecode, HopperDecodesFewTokensInClusters) {
  struct Case {
    const char* what;
    int64_t tokens, max_seqs, kv_heads, context;
    int blocks;  // of a cluster
    int64_t window = 0;
  };
  for (const Case& c : {Case{"one", 1, 1, 8, 1024, 8},
                        {"the longest", 1, 1, 8, 131072, 8},
                        {"too long", 1, 1, 8, 131088, 0},
                        {"eight", 8, 32, 8, 16384, 8},
                        {"eight, too long", 8, 8, 8, 16400, 0},
                        {"eight, a window", 8, 8, 8, 131072, 8, 16384},
                        {"eight, a long window", 8, 8, 8, 131072, 0, 16400},
                        {"nine", 9, 9, 8, 1024, 0},
                        {"room for many", 8, 33, 8, 1024, 8},
                        {"room for too many", 8, 1025, 8, 1024, 0},
                        {"a served step", 16, 256, 8, 8192, 8},
                        {"a served step, long tables", 16, 256, 8, 8208, 6},
                        {"a served step, too long", 16, 256, 8, 32784, 0},
                        {"a served step, five heads", 9, 256, 5, 32768, 6},
                        {"a served step, four heads and long tables", 16, 256, 4, 8208, 0},
                        {"a served step, four heads", 16, 256, 4, 8192, 16},
                        {"a served step, two heads", 16, 256, 2, 2048, 16},
                        {"a served step, few keys", 16, 256, 8, 512, 1},
                        {"nine of ten", 9, 10, 8, 1024, 8},
                        {"17", 17, 256, 8, 1024, 0},
                        {"two heads", 1, 1, 2, 32768, 16},
                        {"two heads, too long", 1, 1, 2, 32784, 0},
                        {"four heads", 1, 1, 4, 131072, 16},
                        {"five heads", 1, 1, 5, 16384, 8},
                        {"five heads, too long", 1, 1, 5, 16400, 0},
                        {"12 heads", 1, 1, 12, 131072, 8},
                        {"13 heads", 1, 1, 13, 8192, 4},
                        {"13 heads, too long", 1, 1, 13, 8208, 0},
                        {"32 heads", 4, 4, 32, 4096, 2},
                        {"49 heads", 4, 4, 49, 4096, 2},
                        {"50 heads", 1, 1, 50, 1024, 0}}) {
    SCOPED_TRACE(c.what);
    Problem problem = MakeProblem();
    problem.tokens = c.tokens;
    problem.max_seqs = c.max_seqs;
    problem.kv_heads = c.kv_heads;
    problem.max_pages_per_seq = c.context / problem.page_size;
    problem.sliding_window = c.window;
    for (const int64_t group : {4, 16}) {
      problem.q_heads = group * c.kv_heads;
      const Config config = Choose(problem, kH200);
      EXPECT_TRUE(config.decode_launch);
      EXPECT_EQ(config.decode_cluster, c.blocks);
      if (c.blocks < 2) continue;
      const Launches l = MakeLaunches(problem, config);
      ASSERT_EQ(l.attend.size(), 1u);
      EXPECT_EQ(l.attend[0].spec.source, "src/ops/paged_attention/cuda/decode_cluster_sm90.cu");
      EXPECT_THAT(l.attend[0].spec.defines, Contains(StrCat("CLUSTER=", c.blocks)));
      EXPECT_THAT(l.attend[0].spec.defines, Contains(StrCat("LINE_ROWS=", group == 4 ? 8 : 16)));
      const testing::Matcher<const std::vector<std::string>&> many = Contains("MANY_SEQS");
      EXPECT_THAT(l.attend[0].spec.defines, c.max_seqs > 32 ? many : Not(many));
      const bool paired = c.blocks == 6;
      EXPECT_EQ(l.attend[0].config.grid[0], (paired ? 2 : 1) * c.blocks * c.kv_heads);
      const testing::Matcher<const std::vector<std::string>&> shares = Contains("PAIRED");
      EXPECT_THAT(l.attend[0].spec.defines, paired ? shares : Not(shares));
      EXPECT_EQ(l.attend[0].config.programmatic, c.max_seqs > 32);
      EXPECT_LE(l.attend[0].config.dynamic_shared_bytes, kH200.max_shared_memory_per_block);
    }
    EXPECT_EQ(Choose(problem, kB200).decode_cluster, 0);
    cuda::DeviceInfo small = kH200;
    small.num_sms = 114;
    EXPECT_LE(Choose(problem, small).decode_cluster, 8);
    problem.batch_invariant = true;
    EXPECT_EQ(Choose(problem, kH200).decode_cluster, 0);
  }
}

// Each range of the line of decode work has room for the partial results of two tiles.
TEST(ConfigDecode, RangesFitTheWorkspace) {
  Problem problem = MakeProblem();
  for (const int64_t seqs : {1, 3, 64, 1000}) {
    for (const int64_t heads : {1, 2, 5, 8, 32, 200}) {
      for (const int64_t group : {1, 4, 40}) {
        for (const int64_t pages : {1, 9, 100000}) {
          problem.tokens = problem.max_seqs = seqs;
          problem.kv_heads = heads;
          problem.q_heads = heads * group;
          problem.max_pages_per_seq = pages;
          const int ranges = Choose(problem, kH200).decode_ranges;
          EXPECT_GE(ranges, 1);
          EXPECT_LE(2 * ranges * heads * std::min<int64_t>(group > 8 ? 32 : 16, seqs * group),
                    MakeWorkspaceLayout(problem).partial_capacity);
        }
      }
    }
  }
}

// Warps of wide heads share keys; their tiles hold the rows of a token, up to 16.
TEST(ConfigDecode, WideHeadsHaveNarrowTiles) {
  for (const DType cache : {DType::kBF16, DType::kF8E4M3FN}) {
    for (const int64_t head_dim : {192, 256, 512}) {
      if (IsFloat8(cache) && head_dim == 192) continue;  // no whole panels
      for (const auto& [group, define] :
           {std::pair{8, "LINE_ROWS=8"}, {9, "LINE_ROWS=16"}, {32, "LINE_ROWS=16"}}) {
        Problem problem = MakeProblem(DType::kBF16, cache, head_dim);
        problem.q_heads = group * problem.kv_heads;
        const Launches l = MakeLaunches(problem, Choose(problem, kH200));
        ASSERT_EQ(l.attend.size(), 1u);
        EXPECT_THAT(l.attend[0].spec.defines, Contains(define));
        EXPECT_LE(l.attend[0].config.dynamic_shared_bytes + 1024,
                  kH200.max_shared_memory_per_block);
        // Clusters have no room for more than eight rows.
        problem.tokens = problem.max_seqs = 1;
        const Config few = Choose(problem, kH200);
        EXPECT_EQ(few.decode_cluster, group == 8 ? 8 : 0);
        EXPECT_TRUE(few.decode_launch);
        EXPECT_LE(MakeLaunches(problem, few).attend[0].config.dynamic_shared_bytes +
                      (few.decode_cluster > 0 ? 0 : 1024),
                  kH200.max_shared_memory_per_block);
      }
    }
  }
}

// Heads of a panel and a half: with their values behind them three panels are a box, else one.
TEST(ConfigDecode, HeadsOfAPanelAndAHalf) {
  for (const auto& [group, page_size, boxes] :
       {std::tuple{1, 16, 1}, {8, 8, 1}, {9, 16, 1}, {32, 16, 1}, {8, 20, 0}}) {
    Problem problem = MakeProblem(DType::kBF16, DType::kBF16, 96);
    problem.q_heads = group * problem.kv_heads;
    problem.page_size = page_size;
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.line_only);
    const Launches l = MakeLaunches(problem, config);
    ASSERT_EQ(l.attend.size(), 1u);
    EXPECT_EQ(l.attend[0].spec.source, "src/ops/paged_attention/cuda/decode_sm90.cu");
    EXPECT_THAT(l.attend[0].spec.defines, Contains("LINE_ROWS=16"));
    EXPECT_THAT(l.attend[0].spec.defines, Contains(StrCat("BOXES=", boxes)));
    EXPECT_EQ(l.attend[0].pairs, boxes == 1);  // three panels
    EXPECT_THAT(l.attend[0].spec.defines, Contains(StrCat("PAIRS=", boxes)));
    EXPECT_LE(l.attend[0].config.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
    const cuda::TensorMapSpec pairs = MakeBoxes(problem, true), alone = MakeBoxes(problem);
    EXPECT_EQ(pairs.box[2], 3u);
    EXPECT_EQ(pairs.dims[2], 3u * 8);  // of all heads
    EXPECT_EQ(alone.dims[0], 96u);
    EXPECT_EQ(alone.box[0], 64u);
    EXPECT_EQ(alone.box[2], page_size % 16 == 0 ? 2u : 1u);
    Problem separate = problem;
    separate.separate_v = true;
    EXPECT_FALSE(MakeLaunches(separate, Choose(separate, kH200)).attend[0].pairs);
    problem.tokens = problem.max_seqs = 1;
    const Config few = Choose(problem, kH200);
    EXPECT_EQ(few.decode_cluster, 8);
    EXPECT_LE(MakeLaunches(problem, few).attend[0].config.dynamic_shared_bytes,
              kH200.max_shared_memory_per_block);
  }
}

// Tokens that see few keys are taken whole, by two blocks a multiprocessor and without a schedule.
TEST(ConfigDecode, HopperTakesTokensOfFewKeysWhole) {
  struct Case {
    const char* what;
    DType cache;
    int64_t head_dim, tokens, max_seqs, kv_heads, window, context;
    int blocks;  // 0: others take them
  };
  constexpr DType kBF16 = DType::kBF16, kF8 = DType::kF8E4M3FN;
  for (const Case& c :
       {Case{"a window", kBF16, 128, 64, 64, 8, 512, 4096, 264},
        {"a longer one", kBF16, 128, 64, 64, 8, 513, 4096, 0},
        {"short contexts", kBF16, 128, 1024, 1024, 8, 0, 512, 264},
        {"longer ones", kBF16, 128, 1024, 1024, 8, 0, 528, 0},
        {"few tokens", kBF16, 128, 9, 64, 8, 128, 4096, 72},
        {"as few as clusters take", kBF16, 128, 8, 8, 8, 128, 4096, 0},
        {"heads that do not divide the blocks", kBF16, 128, 64, 64, 5, 128, 4096, 260},
        {"drafts", kBF16, 128, 65, 64, 8, 128, 4096, 0},
        {"narrow heads", kBF16, 64, 64, 64, 8, 1024, 4096, 264},
        {"a panel and a half", kBF16, 96, 64, 64, 8, 682, 4096, 264},
        {"three panels", kBF16, 192, 64, 64, 8, 341, 4096, 264},
        {"wide heads", kBF16, 256, 64, 64, 4, 256, 4096, 256},
        {"very wide heads", kBF16, 512, 64, 64, 4, 64, 4096, 0},
        {"fp8", kF8, 128, 64, 64, 8, 512, 4096, 264}}) {
    SCOPED_TRACE(c.what);
    Problem problem = MakeProblem(kBF16, c.cache, c.head_dim);
    problem.tokens = c.tokens;
    problem.max_seqs = c.max_seqs;
    problem.sliding_window = c.window;
    problem.kv_heads = c.kv_heads;
    problem.max_pages_per_seq = c.context / problem.page_size;
    for (const int64_t group : {1, 8, 9, 16, 17}) {
      problem.q_heads = group * c.kv_heads;
      const bool takes = c.blocks > 0 && group <= (c.head_dim > 128 ? 8 : 16);
      const Config config = Choose(problem, kH200);
      EXPECT_EQ(config.decode_cluster == 1, takes);
      if (!takes) continue;
      EXPECT_EQ(NameOf(config), "cluster1");
      const Launches l = MakeLaunches(problem, config);
      ASSERT_EQ(l.attend.size(), 1u);
      EXPECT_EQ(l.attend[0].spec.source, "src/ops/paged_attention/cuda/decode_tokens_sm90.cu");
      EXPECT_THAT(l.attend[0].spec.defines, Contains(StrCat("LINE_ROWS=", group <= 8 ? 8 : 16)));
      EXPECT_EQ(l.attend[0].config.grid[0], c.blocks);
      EXPECT_EQ(l.attend[0].config.block[0], 256u);
      EXPECT_FALSE(l.attend[0].config.programmatic);
      EXPECT_LE(2 * (l.attend[0].config.dynamic_shared_bytes + 1024),
                kH200.max_shared_memory_per_block + 1024);
      EXPECT_EQ(Choose(problem, kB200).decode_cluster, 0);
      problem.page_size = 20;  // no boxes
      EXPECT_NE(Choose(problem, kH200).decode_cluster, 1);
      problem.page_size = 16;
    }
  }
}

TEST(ConfigDecode, DecodeKeepsItsTwoLaunches) {
  const Problem problem = MakeProblem(DType::kBF16, DType::kBF16, 160);
  const Config config = Choose(problem, kH200);
  EXPECT_FALSE(config.prefill_launch);
  EXPECT_FALSE(config.decode_launch);
  EXPECT_FALSE(config.boxes);
  EXPECT_EQ(config.prefill_workers, config.workers);
  const Launches l = MakeLaunches(problem, config);
  ASSERT_EQ(l.attend.size(), 1u);
  EXPECT_THAT(l.attend[0].spec.defines, Contains("BEHIND_PREFILL=0"));
  EXPECT_THAT(l.attend[0].spec.defines, Contains("BEHIND_DECODE=0"));
}

}  // namespace
}  // namespace xla_gpu::paged_attention
