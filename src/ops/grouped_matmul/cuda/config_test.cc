// The choice of grouped_matmul's kernels, on the Host alone.
#include "src/ops/grouped_matmul/cuda/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xla_gpu::grouped_matmul {
namespace {

using testing::Contains;

constexpr Problem kProblem{.lhs_dtype = DType::kBF16,
                           .rhs_dtype = DType::kBF16,
                           .out_dtype = DType::kF32,
                           .rows = 1024,
                           .inner = 2048,
                           .columns = 1536,
                           .groups = 128};

const cuda::DeviceInfo& Device(int major) {
  for (const cuda::DeviceInfo& device : cuda::KnownDevices()) {
    if (device.compute_major == major) return device;
  }
  ADD_FAILURE();
  return cuda::KnownDevices()[0];
}

TEST(ChooseConfig, TensorsThatStartAnywhereTakeThePortableKernel) {
  EXPECT_TRUE(ChooseConfig(kProblem, Device(9)).boxes.has_value());
  const Config config = ChooseConfig(kProblem, Device(9), /*aligned=*/false);
  EXPECT_FALSE(config.boxes.has_value());
  EXPECT_EQ(config.kernel.entry, "grouped_matmul");
}

TEST(ChooseConfig, TilesGrowWithTheRowsOfAGroup) {
  Problem problem = kProblem;
  for (const auto& [rows, tile] : {std::pair{0.1, "ROWS=16"},
                                   {8, "ROWS=16"},
                                   {16, "ROWS=32"},
                                   {64, "ROWS=64"},
                                   {65, "ROWS=128"}}) {
    problem.rows = static_cast<int64_t>(128 * rows);
    EXPECT_THAT(ChooseConfig(problem, Device(9)).kernel.defines, Contains(tile)) << rows;
  }
}

TEST(ChooseConfig, HopperTakesWhatItsCopyEngineCanDescribe) {
  EXPECT_TRUE(ChooseConfig(kProblem, Device(9)).boxes);
  EXPECT_FALSE(ChooseConfig(kProblem, Device(8)).boxes);
  for (const auto& change : std::vector<void (*)(Problem&)>{
           [](Problem& p) { p.inner = 2049; }, [](Problem& p) { p.columns = 1537; },
           [](Problem& p) { p.lhs_dtype = p.rhs_dtype = DType::kF32; },
           [](Problem& p) { p.scale_blocks = 1; }, [](Problem& p) { p.groups = 0; },
           [](Problem& p) { p.rhs_dtype = DType::kI8, p.columns = 1544; },
           [](Problem& p) { p.rhs_dtype = DType::kI8, p.scale_blocks = 64; },
           [](Problem& p) { p.rhs_dtype = DType::kI8, p.lhs_dtype = DType::kF32; }}) {
    Problem problem = kProblem;
    change(problem);
    EXPECT_FALSE(ChooseConfig(problem, Device(9)).boxes);
  }
}

TEST(ChooseConfig, HopperConvertsMatricesOf8Bits) {
  Problem problem = kProblem;
  for (const DType dtype : {DType::kI8, DType::kF8E4M3FN, DType::kF8E5M2}) {
    for (const int64_t blocks : {0, 1, 16}) {
      problem.rhs_dtype = dtype;
      problem.scale_blocks = blocks;
      EXPECT_TRUE(ChooseConfig(problem, Device(9)).boxes);
    }
  }
}

TEST(ChooseConfig, BlocksOfHoppersKernelFitAMultiprocessor) {
  Problem problem = kProblem;
  for (const auto& [rows, rhs] :
       std::initializer_list<std::pair<int64_t, DType>>{{1, DType::kBF16},
                                                        {16, DType::kBF16},
                                                        {64, DType::kBF16},
                                                        {500, DType::kBF16},
                                                        {1, DType::kI8},
                                                        {16, DType::kI8},
                                                        {64, DType::kI8},
                                                        {500, DType::kI8}}) {
    problem.rows = 128 * rows;
    problem.rhs_dtype = rhs;
    const Config config = ChooseConfig(problem, Device(9));
    const uint32_t blocks = config.launch.grid[0] / static_cast<uint32_t>(Device(9).num_sms);
    EXPECT_LE(blocks * (config.launch.dynamic_shared_bytes + 1024), 233472u) << rows;
  }
}

TEST(ChooseConfig, SmallProblemsHaveFewBlocks) {
  Problem problem = kProblem;
  problem.rows = 1;
  problem.columns = 64;
  EXPECT_EQ(ChooseConfig(problem, Device(9)).launch.grid[0], 2u);  // share its tile
  problem.inner = 64;
  EXPECT_EQ(ChooseConfig(problem, Device(9)).launch.grid[0], 1u);
}

TEST(ChooseConfig, TwoBlocksShareEachOfFewTiles) {
  Problem problem = kProblem;
  problem.groups = 1;
  problem.inner = problem.columns = 4096;
  for (const int64_t rows : {1, 16, 32, 64, 128, 200}) {
    problem.rows = rows;
    const Config config = ChooseConfig(problem, Device(9));
    EXPECT_EQ(config.launch.cluster[0], 2u) << rows;
    EXPECT_EQ(config.launch.grid[0], rows > 32 ? 64u : 128u) << rows;
    EXPECT_LE(config.launch.dynamic_shared_bytes, Device(9).max_shared_memory_per_block);
  }
  problem.rhs_dtype = problem.lhs_dtype;  // the largest tile, and half of the other block's
  EXPECT_THAT(ChooseConfig(problem, Device(9)).kernel.defines, Contains("STAGES=3"));
  problem.columns = 14336;
  EXPECT_EQ(ChooseConfig(problem, Device(9)).launch.cluster[0], 1u);
}

}  // namespace
}  // namespace xla_gpu::grouped_matmul
