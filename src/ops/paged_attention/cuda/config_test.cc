// The choice of kernels, workspace and launches, on the Host alone.
#include "src/ops/paged_attention/cuda/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <tuple>

#include "src/ops/paged_attention/cuda/config_testing.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/random_case.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(Config, TilesFillAMultiprocessor) {
  for (const cuda::DeviceInfo& device : {kA100, kH200, kB200}) {
    const Config config = Choose(MakeChunks(), device);
    EXPECT_EQ(config.families.back(), &kSm80);
    EXPECT_EQ(config.tile_rows, 128);
    EXPECT_EQ(config.tile_keys, device.num_sms == 108 ? 32 : 64);
    EXPECT_EQ(config.blocks_per_sm, 2);
    EXPECT_EQ(config.workers, 2 * device.num_sms);
  }
}

TEST(Config, HopperPrefillsInALaunchOfItsOwn) {
  for (const auto& [problem, workers] : {std::pair{MakeChunks(4), 264},
                                         {MakePrefill(), 264},
                                         {MakePrefill(DType::kF16, 64), 264},
                                         {MakePrefill(DType::kBF16, 80), 264},
                                         {MakePrefill(DType::kBF16, 96), 264},
                                         {MakePrefill(DType::kBF16, 192), 264},
                                         {MakePrefill(DType::kBF16, 256), 132},
                                         {MakePrefill(DType::kBF16, 512), 132}}) {
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.prefill_launch);
    EXPECT_TRUE(config.boxes);
    EXPECT_EQ(config.prefill_workers, 132);
    EXPECT_EQ(config.workers, workers);
    // Of both launches: attend takes what prefill leaves.
    const int rows = problem.head_dim == 512 ? 64 : 128;
    EXPECT_EQ(PlanParams(problem, config).params.prefill_tile_rows, rows);
    EXPECT_EQ(rows % config.tile_rows, 0);
    // Decode has a launch beside it, whose tiles hold drafts of several tokens where that is what
    // sequences have room for.
    const bool decodes = problem.head_dim != 80;
    const bool drafts = problem.tokens == 4 * problem.max_seqs;
    EXPECT_EQ(config.decode_launch, decodes);
    EXPECT_FALSE(config.line_only);
    EXPECT_EQ(config.decode_max_rows, drafts ? 32 : 16);
    const Launches l = MakeLaunches(problem, config);
    ASSERT_EQ(l.attend.size(), decodes ? 3u : 2u);
    if (decodes) {
      EXPECT_EQ(l.attend[0].spec.source, "src/ops/paged_attention/cuda/decode_sm90.cu");
      EXPECT_THAT(l.attend[0].spec.defines, Contains(drafts ? "LINE_ROWS=32" : "LINE_ROWS=16"));
    }
    const KernelLaunch& prefill = l.attend[decodes ? 1 : 0];
    EXPECT_EQ(prefill.spec.source, "src/ops/paged_attention/cuda/prefill_sm90.cu");
    EXPECT_THAT(prefill.spec.defines, Contains(decodes ? "BESIDE_DECODE=1" : "BESIDE_DECODE=0"));
    EXPECT_EQ(prefill.config.grid[0], 132u);
    EXPECT_EQ(prefill.config.block[0], 384u);
    EXPECT_LE(prefill.config.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
    EXPECT_THAT(l.attend.back().spec.defines, Contains("BEHIND_PREFILL=1"));
    EXPECT_THAT(l.attend.back().spec.defines, Contains(decodes ? "BEHIND_DECODE=1" : "REDO_ONLY"));
    EXPECT_TRUE(l.schedule.config.programmatic);
    for (const KernelLaunch& launch : l.attend) EXPECT_TRUE(launch.config.programmatic);
  }
}

TEST(Config, BlocksOfFewSequencesFindTheirFirstWork) {
  const auto finds = [](int64_t seqs, int64_t head_dim, DType cache = DType::kBF16) {
    Problem problem = MakePrefill(DType::kBF16, head_dim);
    problem.cache_dtype = cache;
    problem.max_seqs = seqs;
    const Config config = Choose(problem, kH200);
    EXPECT_TRUE(config.prefill_launch);
    return PlanParams(problem, config).params.own_work;
  };
  EXPECT_EQ(finds(1, 128), 1);
  EXPECT_EQ(finds(4, 128), 1);
  // Decode is beside them, a thread of it a sequence.
  EXPECT_EQ(finds(16, 128), 1);
  EXPECT_EQ(finds(384, 128), 1);
  EXPECT_EQ(finds(500, 128), 0);
  EXPECT_EQ(finds(32, 80), 1);
  EXPECT_EQ(finds(33, 80), 0);
  EXPECT_EQ(finds(4, 128, DType::kF8E4M3FN), 0);
}

TEST(Config, FewTokensHaveNoPrefill) {
  Problem problem = MakeProblem();
  for (const auto& [seqs, tokens, expected] :
       std::initializer_list<std::tuple<int, int, bool>>{{1, 2, false},
                                                         {1, 8, false},
                                                         {1, 9, true},
                                                         {8, 32, false},
                                                         {8, 33, true},
                                                         {64, 96, false},
                                                         {64, 97, true}}) {
    problem.max_seqs = seqs;
    problem.tokens = tokens;
    EXPECT_EQ(Choose(problem, kH200).prefill_launch, expected) << seqs << " " << tokens;
  }
}

TEST(Config, ProblemsMayLackTokensSequencesAndPages) {
  Problem problem = MakeProblem();
  for (const cuda::DeviceInfo& device : {kA100, kH200}) {
    for (const bool batch_invariant : {false, true}) {
      problem.batch_invariant = batch_invariant;
      for (int lacks = 0; lacks < 16; ++lacks) {
        problem.tokens = lacks & 1 ? 0 : 4;
        problem.max_seqs = lacks & 2 ? 0 : 4;
        problem.num_pages = lacks & 4 ? 0 : 4;
        problem.max_pages_per_seq = lacks & 8 ? 0 : 4;
        const Config config = Choose(problem, device);
        EXPECT_EQ(config.decode_launch, device.tensor_maps && !batch_invariant && (lacks & 3) == 0);
        EXPECT_TRUE(!config.decode_launch || config.boxes == (problem.num_pages > 0));
        EXPECT_EQ(PlanParams(problem, config).params.decode_ranges > 0, config.decode_launch);
      }
    }
  }
}

TEST(Config, PrefillLaunchNeedsPanelsAndTypesThatFit) {
  const auto takes = [](const Problem& problem, const cuda::DeviceInfo& device = kH200) {
    return Choose(problem, device).prefill_launch;
  };
  EXPECT_FALSE(takes(MakePrefill(), kA100));
  EXPECT_FALSE(takes(MakePrefill(), kB200));
  for (const int64_t head_dim : {16, 72, 80, 96, 192, 248, 512}) {
    EXPECT_TRUE(takes(MakePrefill(DType::kBF16, head_dim))) << head_dim;
  }
  for (const int64_t head_dim : {3, 8, 84, 264, 384}) {
    EXPECT_FALSE(takes(MakePrefill(DType::kBF16, head_dim))) << head_dim;
  }
  EXPECT_FALSE(takes(MakeProblem()));
}

// Which leaves no room for the widest heads.
TEST(Config, HopperConvertsCachesOfFp8) {
  for (const DType cache : {DType::kF8E4M3FN, DType::kF8E5M2}) {
    for (const auto& [head_dim, taken] :
         {std::pair{64, true}, {80, false}, {128, true}, {256, false}}) {
      Problem problem = MakePrefill(DType::kBF16, head_dim);
      problem.cache_dtype = cache;
      const Config config = Choose(problem, kH200);
      EXPECT_EQ(config.prefill_launch, taken) << head_dim;
      EXPECT_FALSE(config.boxes);
      if (!taken) continue;
      const cuda::LaunchConfig launch = MakeLaunches(problem, config).attend[0].config;
      EXPECT_LE(launch.dynamic_shared_bytes + 1024, kH200.max_shared_memory_per_block);
    }
  }
}

TEST(Config, BoxesNeedPagesThatTheCopyEngineTakes) {
  const auto boxes = [](const Problem& problem, const cuda::DeviceInfo& device = kH200) {
    const Config config = Choose(problem, device);
    EXPECT_TRUE(config.prefill_launch);
    const Launches launches = MakeLaunches(problem, config);
    EXPECT_THAT(launches.attend[config.decode_launch ? 1 : 0].spec.defines,
                Contains(config.boxes ? "BOXES=1" : "BOXES=0"));
    return config.boxes;
  };
  cuda::DeviceInfo old_driver = kH200;
  old_driver.tensor_maps = false;
  EXPECT_FALSE(boxes(MakePrefill(), old_driver));
  Problem problem;
  for (const auto& [page_size, taken] :
       {std::pair{1, false}, {8, true}, {12, false}, {24, true}, {256, true}}) {
    problem = MakePrefill();
    problem.page_size = page_size;
    EXPECT_EQ(boxes(problem), taken) << page_size;
  }
  problem = MakePrefill();
  problem.k.page_stride = problem.v.page_stride = int64_t{1} << 40;
  EXPECT_FALSE(boxes(problem));
  problem = MakePrefill();
  problem.k.head_stride = problem.v.head_stride = 2 * 128 + 8;
  EXPECT_FALSE(boxes(problem));
}

// Where the copy engine finds token `token` of `page`, head `head`, element `d`, in bytes from the
// base: coordinates times strides.
TEST(Config, BoxesFindEveryElement) {
  for (const int64_t page_size : {8, 16, 24, 128}) {
    Problem problem = MakePrefill();
    problem.page_size = page_size;
    problem.k.page_stride = page_size * problem.k.token_stride;
    for (const bool heads_first : {false, true}) {
      if (heads_first) problem.k = {0, 8 * page_size * 128, 128, page_size * 128};
      const cuda::TensorMapSpec boxes = MakeBoxes(problem);
      EXPECT_TRUE(cuda::IsAccepted(boxes));
      EXPECT_EQ(boxes.dims[4], 4096u);
      EXPECT_EQ(page_size % (int64_t{boxes.box[1]} * boxes.box[3]), 0);
      EXPECT_EQ(boxes.box[0] * boxes.box[2], 128u);
      for (const uint64_t head : {0, 7}) {
        for (const uint64_t token : {int64_t{0}, int64_t{5}, page_size - 1}) {
          for (const uint64_t d : {0, 63, 64, 127}) {
            const uint64_t coordinates[] = {
                d % 64, token % 8, head * problem.k.head_stride / 64 + d / 64, token / 8, 3};
            uint64_t at = coordinates[0] * 2;
            for (int i = 1; i < 5; ++i) {
              ASSERT_LT(coordinates[i], boxes.dims[i]) << i;
              at += coordinates[i] * boxes.strides[i - 1];
            }
            EXPECT_EQ(at, 2 * (3 * problem.k.page_stride + token * problem.k.token_stride +
                               head * problem.k.head_stride + d));
          }
        }
      }
    }
  }
}

// The same where a head fills no whole panels: what a box has past its end are zeros.
TEST(Config, BoxesOfPaddedHeadsFindEveryElement) {
  for (const int64_t head_dim : {72, 96, 200}) {
    const Problem problem = MakePrefill(DType::kBF16, head_dim);
    const cuda::TensorMapSpec boxes = MakeBoxes(problem);
    EXPECT_TRUE(cuda::IsAccepted(boxes));
    EXPECT_TRUE(Choose(problem, kH200).boxes);
    for (const uint64_t head : {0, 7}) {
      for (const uint64_t token : {0, 5, 15}) {
        for (const int64_t d : {int64_t{0}, int64_t{63}, int64_t{64}, head_dim - 1}) {
          const uint64_t coordinates[] = {static_cast<uint64_t>(d), token % 8, token / 8, 3, head};
          uint64_t at = coordinates[0] * 2;
          for (int i = 0; i < 5; ++i) {
            ASSERT_LT(coordinates[i], boxes.dims[i]) << i;
            if (i > 0) at += coordinates[i] * boxes.strides[i - 1];
          }
          EXPECT_EQ(at, 2 * (3 * problem.k.page_stride + token * problem.k.token_stride +
                             head * problem.k.head_stride + d));
        }
      }
    }
  }
}

// What decode_sm80.cuh asserts while it compiles: two stages for each of four warps, in which there
// is room to merge.
TEST(Config, EveryHeadSizeFitsEveryDevice) {
  for (const cuda::DeviceInfo& device : {kA100, kL40, kH200, kB200}) {
    for (const auto& [query, cache] : {std::pair{DType::kBF16, DType::kBF16},
                                       {DType::kBF16, DType::kF8E4M3FN},
                                       {DType::kBF16, DType::kF32},
                                       {DType::kF32, DType::kF32}}) {
      for (int64_t head_dim = 1; head_dim <= 512; ++head_dim) {
        const Problem problem = MakeProblem(query, cache, head_dim);
        const Config config = Choose(problem, device);
        SCOPED_TRACE(testing::Message() << head_dim << " on " << device.Arch());
        EXPECT_LE(config.blocks_per_sm * (config.shared_bytes + 3584),
                  device.max_shared_memory_per_block + 1024);
        EXPECT_GE(config.blocks_per_sm, 1);
        EXPECT_LE(config.tile_rows, 128);
        const bool split = query == DType::kF32;
        if (split && (device.max_shared_memory_per_block > 99 << 10 || head_dim <= 384)) {
          EXPECT_EQ(config.families.back(), &kSm80);
        }
        if (config.families.back() == &kSimt) continue;
        const int64_t element = DTypeSize(cache);
        const int64_t align = element == 2 ? 16 : 32;
        const int64_t part = split ? 128 : 256;
        const int64_t parts = head_dim > 2 * part ? 4 : head_dim > part ? 2 : 1;
        EXPECT_EQ(config.tile_rows % (64 / parts), 0);
        const int64_t own = (head_dim + parts * align - 1) / (parts * align) * align;
        const int64_t stages = (split ? 32 : 64) * (own * element + 16);
        EXPECT_GE(config.shared_bytes / 4, stages);
        EXPECT_GE(stages, 16 * (own + 8) * 4);
      }
    }
  }
}

TEST(Config, OldDevicesAndHugeProblemsAreRefused) {
  auto config = ChooseConfig(MakeProblem(), Device(7, 5, 40, 64));
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr("compute capability 7.5"));
  Problem problem = MakeProblem();
  problem.tokens = int64_t{1} << 30;
  config = ChooseConfig(problem, kH200);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr("split the batch"));
}

TEST(Workspace, IsModestAndOrdered) {
  const WorkspaceLayout layout = MakeWorkspaceLayout(MakeProblem());
  EXPECT_GE(layout.total_bytes, 16);
  EXPECT_LE(layout.total_bytes, 32 << 20);
  EXPECT_EQ(layout.header, 0);
  const int64_t begins[] = {layout.header,      layout.sequences,   layout.owner_end,
                            layout.state,       layout.items,       layout.merges,
                            layout.partial_max, layout.partial_sum, layout.partial_out,
                            layout.arrivals,    layout.total_bytes};
  for (size_t i = 1; i < std::size(begins); ++i) EXPECT_LT(begins[i - 1], begins[i]);
  for (const int64_t begin : begins) EXPECT_EQ(begin % 256, 0);
}

TEST(Workspace, HasRoomForWhatAPrefillLaunchLeaves) {
  const Problem problem = MakePrefill();
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  EXPECT_GE(layout.merges - layout.redo, layout.item_capacity * problem.kv_heads * 4);
  EXPECT_GE(layout.partial_max - layout.merges, layout.item_capacity * 4);
  EXPECT_EQ(layout.redo % 256, 0);
}

TEST(Workspace, SmallProblemsTakeLittle) {
  Problem problem = MakeProblem();
  problem.tokens = problem.max_seqs = 1;
  problem.max_pages_per_seq = 8;
  EXPECT_LE(WorkspaceBytes(problem), 128 << 10);
}

// In batch-invariant mode splits depend on a sequence alone, so there is room for all of them.
TEST(Workspace, BatchInvariantHoldsEverySplit) {
  Problem problem = MakeProblem();
  problem.batch_invariant = true;
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  const int64_t splits = 4;  // 4096 tokens, 1024 each
  EXPECT_EQ(layout.partial_capacity, problem.tokens * problem.q_heads * splits);
  problem.max_pages_per_seq = 1;
  EXPECT_EQ(MakeWorkspaceLayout(problem).partial_capacity, 0);
}

// Long contexts bring the carry of their sums, of a size that no device decides.
TEST(Workspace, LongContextsCarryTheirSums) {
  Problem problem = MakeChunks();
  problem.max_pages_per_seq = 8192 / problem.page_size;
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  EXPECT_EQ(layout.carry, layout.total_bytes);
  ++problem.max_pages_per_seq;
  EXPECT_GT(WorkspaceBytes(problem), layout.total_bytes);
  EXPECT_LE(WorkspaceBytes(problem), layout.total_bytes + (48 << 20));
  // A worker's part is there for every worker.
  EXPECT_LE(Choose(problem, Device(9, 0, 1000, 227)).workers, 320);
  problem.cache_dtype = DType::kF32;
  EXPECT_LE(Choose(problem, Device(9, 0, 1000, 227)).workers, 640);
  // Where attend_simt.cu may run, or in f32, sums over fewer keys.
  for (const auto& [dtype, head_dim] :
       {std::pair{DType::kF32, 128}, {DType::kF32, 512}, {DType::kBF16, 256}}) {
    problem = MakeProblem(dtype, dtype, head_dim);
    problem.max_pages_per_seq = 4096 / problem.page_size;
    EXPECT_EQ(MakeWorkspaceLayout(problem).carry, WorkspaceBytes(problem));
    ++problem.max_pages_per_seq;
    EXPECT_GT(WorkspaceBytes(problem), MakeWorkspaceLayout(problem).carry);
  }
}

// Tensors that start anywhere take attend_simt.cu: what it needs must fit the workspace, which is
// sized where nobody knows where tensors start.
TEST(Workspace, SufficesForUnalignedTensors) {
  std::mt19937_64 rng(1);
  const auto in = IntegersOf(rng);
  const DType types[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN, DType::kF8E5M2};
  int carries = 0;
  for (int i = 0; i < 20'000; ++i) {
    Problem problem = MakeProblem(types[in(0, 2)], types[in(0, 4)], in(1, 512));
    problem.kv_heads = in(1, 16);
    problem.q_heads = problem.kv_heads * in(1, 40);
    problem.page_size = in(1, 64);
    problem.max_pages_per_seq = in(1, int64_t{1} << in(0, 16));
    problem.max_seqs = in(1, 300);
    problem.tokens = in(1, 3000);
    problem.batch_invariant = in(0, 3) == 0;
    const Config config = *ChooseConfig(problem, i % 2 == 0 ? kH200 : kB200, /*aligned=*/false);
    ASSERT_EQ(config.families.back(), &kSimt);
    const Launches launches = MakeLaunches(problem, config);
    ASSERT_EQ(launches.attend.size(), 1u);
    ASSERT_THAT(launches.attend[0].spec.defines, Contains("UNALIGNED"));
    const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
    const Params p = PlanParams(problem, config).params;
    // Tiles of 16 rows, and of split ones a part that has at least a row in each head.
    const int64_t active = std::min(problem.max_seqs, problem.tokens);
    ASSERT_EQ(p.prefill_tile_rows, kDecodeTileRows);
    ASSERT_GE(p.item_capacity, problem.tokens * ((problem.group_size() + 15) / 16) + active +
                                   p.partial_capacity / problem.kv_heads);
    ASSERT_LE(p.partial_capacity, layout.partial_capacity);
    if (problem.batch_invariant && problem.max_context() > kInvariantSplitTokens) {
      const int64_t splits = std::min<int64_t>(kInvariantMaxSplits, problem.max_context() / 1024);
      const int64_t rows = std::min(problem.tokens * problem.group_size(), active * 16);
      ASSERT_LE(config.decode_max_rows, 16);
      ASSERT_GE(p.partial_capacity, rows * problem.kv_heads * splits);
    }
    // As attend_simt.cu computes kCarryBlocks and kCarryFloats.
    const bool narrow =
        DTypeSize(problem.query_dtype) == 2 &&
        (problem.query_dtype == problem.cache_dtype || IsFloat8(problem.cache_dtype));
    const int64_t most = narrow && problem.head_dim <= 128 ? kCarryKeys : kF32CarryKeys;
    if (problem.max_context() <= most) continue;
    const int64_t quads = ((problem.head_dim + 3) / 4 + 7) / 8;
    ASSERT_GE(layout.total_bytes - layout.carry,
              4 * config.workers * kAttendThreads * (1 + 2 * (1 + 4 * quads)));
    ++carries;
  }
  EXPECT_GT(carries, 1000);
}

// Where starts descend, each token may be items of its own.
TEST(Workspace, HoldsAnItemAToken) {
  Problem problem = MakeProblem();
  for (const int64_t group : {1, 4, 16, 17, 250}) {
    problem.q_heads = group * problem.kv_heads;
    EXPECT_GE(MakeWorkspaceLayout(problem).item_capacity,
              problem.tokens * ((group + 15) / 16) + (problem.tokens + 63) / 64);
  }
}

cuda::KernelSpec Attend(const Problem& problem) {
  return MakeLaunches(problem, Choose(problem, kH200)).attend.back().spec;
}

TEST(Launches, LargeSoftCapsTakeTheExactTanh) {
  Problem problem = MakeProblem();
  problem.soft_cap = 257;
  EXPECT_THAT(Attend(problem).defines, Contains("SOFT_CAP=2"));
  problem = MakeProblem(DType::kF32, DType::kF32);
  problem.soft_cap = 30;
  EXPECT_THAT(Attend(problem).defines, Contains("SOFT_CAP=2"));
}

TEST(Launches, NamesWhatShapesTheCodeAndNothingElse) {
  Problem problem = MakeChunks();
  const Launches a = MakeLaunches(problem, Choose(problem, kH200));
  const cuda::KernelSpec& attend = a.attend.back().spec;
  EXPECT_EQ(attend.source, "src/ops/paged_attention/cuda/attend_sm80.cu");
  EXPECT_THAT(attend.defines, Contains("HEAD_DIM=128"));
  EXPECT_THAT(attend.defines, Contains("SOFT_CAP=0"));
  // Sizes, windows and page sizes are parameters: no other kernel is compiled for them.
  problem.page_size = 7;
  problem.sliding_window = 100;
  problem.scale = 2;
  problem.q_heads = problem.kv_heads = 3;
  problem.tokens = 1000;
  problem.causal = false;
  const Launches b = MakeLaunches(problem, Choose(problem, kH200));
  EXPECT_EQ(a.schedule.spec.defines, b.schedule.spec.defines);
  EXPECT_EQ(attend.defines, b.attend.back().spec.defines);
  problem.soft_cap = 30;
  EXPECT_THAT(Attend(problem).defines, Contains("SOFT_CAP=1"));
}

TEST(Launches, MostCallsArePlain) {
  EXPECT_THAT(Attend(MakeChunks()).defines, Contains("PLAIN=1"));
  for (void (*change)(Problem&) : {
           +[](Problem& p) { p.has_sinks = true; },
           +[](Problem& p) { p.return_lse = true; },
           +[](Problem& p) { p.scale = -1; },
           +[](Problem& p) { p.k_scale_size = 1; },
           +[](Problem& p) { p.v_scale_size = p.kv_heads; },
       }) {
    Problem problem = MakeChunks();
    change(problem);
    for (const KernelLaunch& launch : MakeLaunches(problem, Choose(problem, kH200)).attend) {
      EXPECT_THAT(launch.spec.defines, Contains("PLAIN=0")) << launch.spec.source;
    }
  }
}

TEST(Launches, GridsDependOnShapesAlone) {
  Problem problem = MakeProblem();
  for (const int64_t tokens : {1, 8, 64, 1000, 100000}) {
    problem.tokens = tokens;
    const Launches l = MakeLaunches(problem, Choose(problem, kH200));
    EXPECT_EQ(l.schedule.config.grid[0], 1u);
    EXPECT_EQ(l.attend.back().config.grid[0], tokens <= 8 ? 64u : tokens <= 64 ? 132u : 264u);
  }
}

TEST(Launches, TheScheduleHasAThreadASequence) {
  Problem problem = MakeProblem();
  for (const auto& [seqs, threads] :
       {std::pair{1, 128u}, {128, 128u}, {129, 256u}, {1000, 1024u}, {5000, 1024u}}) {
    problem.max_seqs = seqs;
    const Launches l = MakeLaunches(problem, Choose(problem, kH200));
    EXPECT_EQ(l.schedule.config.block[0], threads);
    EXPECT_THAT(l.schedule.spec.defines, Contains("SCHEDULE_THREADS=" + std::to_string(threads)));
  }
}

class ParamsTest : public testing::Test {
 protected:
  Buffers MakeBuffers() {
    Buffers b{};
    b.query = b.k_cache = b.v_cache = b.out = b.workspace = memory_;
    return b;
  }
  alignas(256) char memory_[256];
};

TEST_F(ParamsTest, LayoutIsInBytes) {
  const Problem problem = MakeProblem();
  const Buffers buffers = MakeBuffers();
  auto p = MakeParams(PlanParams(problem, Choose(problem, kH200)), buffers);
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(p->k_cache, memory_);
  EXPECT_EQ(p->v_cache, memory_ + 2 * 128);
  EXPECT_EQ(p->page_stride, 2 * 16 * 16 * 128);
  EXPECT_EQ(p->head_stride, 2 * 2 * 128);
  EXPECT_EQ(p->max_context, 4096);
  EXPECT_EQ(p->lse, nullptr);
}

TEST_F(ParamsTest, AWindowBeforeTheFirstKeyIsAPosition) {
  Problem problem = MakePrefill();
  problem.max_pages_per_seq = int64_t{1} << 27;  // 2^31 tokens
  problem.sliding_window = kMaxInt;
  for (const int64_t tokens : {1, 2048, 8192, 1 << 20}) {
    problem.tokens = tokens;
    const Params p = PlanParams(problem, Choose(problem, kH200)).params;
    EXPECT_EQ(p.window, p.max_context);
    EXPECT_GE(-tokens - p.window + 1, -kMaxInt) << tokens;
    EXPECT_LE(p.max_context, kMaxInt - 4096);
  }
}

TEST_F(ParamsTest, AnUnalignedWorkspaceIsRefused) {
  Buffers buffers = MakeBuffers();
  buffers.query = memory_ + 2;
  const Problem problem = MakeProblem();
  const PlannedParams planned = PlanParams(problem, Choose(problem, kH200));
  EXPECT_TRUE(MakeParams(planned, buffers).ok());
  buffers.workspace = memory_ + 8;
  auto p = MakeParams(planned, buffers);
  ASSERT_FALSE(p.ok());
  EXPECT_THAT(p.status().message(), HasSubstr("workspace lies at address"));
}

TEST_F(ParamsTest, PageDivisionIsExact) {
  std::mt19937 random(1);
  Problem problem = MakeProblem();
  const Config config = Choose(problem, kH200);
  const auto check = [&](int64_t page_size) {
    problem.page_size = page_size;
    auto p = MakeParams(PlanParams(problem, config), MakeBuffers());
    ASSERT_TRUE(p.ok());
    if (page_size == 1) return;  // the kernel does not divide
    const auto divide = [&](uint64_t key) {
      return key * p->by_page.magic >> 32 >> p->by_page.shift;
    };
    for (uint64_t key : {int64_t{0}, page_size - 1, page_size, int64_t{0x7fffffff},
                         0x7fffffff / page_size * page_size - 1}) {
      ASSERT_EQ(divide(key), key / page_size) << key << " / " << page_size;
    }
    for (int i = 0; i < 20; ++i) {
      const uint64_t key = random() >> 1;
      ASSERT_EQ(divide(key), key / page_size) << key << " / " << page_size;
    }
  };
  for (int64_t page_size = 1; page_size < 2000; ++page_size) check(page_size);
  for (int i = 0; i < 2000; ++i) check((random() >> 1) + 1);
  check(0x7fffffff);
}

// The kernels differ by what fits the shared memory.
TEST(CompileCheckSpecs, AreThoseThatTheArchitectureTakes) {
  const auto specs = [](const char* arch) {
    std::vector<std::string> texts;
    const auto device = std::ranges::find(cuda::KnownDevices(), arch, &cuda::DeviceInfo::Arch);
    for (const cuda::KernelSpec& spec : CompileCheckSpecs(*device)) {
      texts.push_back(StrCat(spec.source, " ", StrJoin(spec.defines, " ")));
    }
    return texts;
  };
  EXPECT_EQ(specs("sm_86"), specs("sm_89"));
  EXPECT_EQ(specs("sm_120a"), specs("sm_89"));
  EXPECT_EQ(specs("sm_121a"), specs("sm_89"));
  EXPECT_EQ(specs("sm_87"), specs("sm_80"));
  EXPECT_NE(specs("sm_89"), specs("sm_80"));
  EXPECT_NE(specs("sm_100a"), specs("sm_89"));
}

TEST(CompileCheckSpecs, AreFewAndDistinct) {
  for (const cuda::DeviceInfo& device : cuda::KnownDevices()) {
    const auto specs = CompileCheckSpecs(device);
    EXPECT_LE(specs.size(), 42u);
    for (size_t i = 0; i < specs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(specs[i].source == specs[j].source && specs[i].defines == specs[j].defines);
      }
    }
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
