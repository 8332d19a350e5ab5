// The choice of update_kv_cache's kernels, on the Host alone.
#include "src/ops/update_kv_cache/cuda/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace xla_gpu::update_kv_cache {
namespace {

TEST(VectorElements, FillsSixteenBytesWithinAHead) {
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kBF16, 128), 8);
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kF8E4M3FN, 128), 8);
  EXPECT_EQ(VectorElements(DType::kF32, DType::kF8E4M3FN, 128), 4);
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kF32, 128), 4);
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kBF16, 20), 4);
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kBF16, 6), 2);
  EXPECT_EQ(VectorElements(DType::kBF16, DType::kBF16, 3), 1);
}

TEST(TokensPerBlock, GrowsWithTheTokens) {
  EXPECT_EQ(TokensPerBlock(0, 132), 1);
  EXPECT_EQ(TokensPerBlock(64, 132), 1);
  EXPECT_EQ(TokensPerBlock(4096, 132), 10);
  EXPECT_EQ(TokensPerBlock(1 << 20, 132), kMaxTokensPerBlock);
}

TEST(TokensPerBlock, OnHopperMultiprocessorsHaveTwoBlocksOrAMultiple) {
  EXPECT_EQ(TokensPerBlockSm90(1, 132), 1);
  EXPECT_EQ(TokensPerBlockSm90(4096, 132), 16);
  EXPECT_EQ(TokensPerBlockSm90(132 * 1024, 132), 512);
  EXPECT_EQ(TokensPerBlockSm90(132 * 1024 + 1, 132), 257);
  EXPECT_EQ(TokensPerBlockSm90(1 << 18, 132), 497);
  for (int64_t tokens = 1; tokens < 1 << 30; tokens += tokens / 5 + 1) {
    const int64_t block = TokensPerBlockSm90(tokens, 132);
    EXPECT_LE(block, sm90::kThreads);
    const int64_t blocks = (tokens + block - 1) / block;
    EXPECT_LE((blocks + 263) / 264, tokens / (264 * 512) + 1) << tokens;
  }
}

TEST(ChooseConfig, TheRingIsForManyBytesOnHopperInTokensOfSixteenBytes) {
  Problem problem;
  problem.input_dtype = problem.cache_dtype = DType::kBF16;
  problem.slot_dtype = DType::kI64;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.tokens = 4096;
  const auto takes = [](const Problem& p, const cuda::DeviceInfo& device, bool aligned = true) {
    return ChooseConfig(p, device, aligned).kernel.entry == "update_kv_cache_sm90";
  };
  const auto h200 = std::ranges::find(cuda::KnownDevices(), "H200", &cuda::DeviceInfo::name);
  for (const cuda::DeviceInfo& device : cuda::KnownDevices()) {
    EXPECT_EQ(takes(problem, device), device.name == "H200") << device.name;
  }
  const Config config = ChooseConfig(problem, *h200);
  EXPECT_THAT(config.kernel.defines, testing::Contains("SLOT_TYPE_64"));
  EXPECT_EQ(config.params.tokens_per_block, 16);
  EXPECT_EQ(config.launch.grid[0], 256u);
  EXPECT_EQ(config.launch.block[0], 512u);
  // Two blocks fit, each with 25 bytes a thread beside it for its table.
  EXPECT_LE(2 * (config.launch.dynamic_shared_bytes + 25 * 512 + 2048),
            h200->max_shared_memory_per_block);

  EXPECT_FALSE(takes(problem, *h200, /*aligned=*/false));
  Problem other = problem;
  other.tokens = 512;
  EXPECT_FALSE(takes(other, *h200));
  EXPECT_EQ(ChooseConfig(other, *h200).launch.grid[0], 512u);
  other.tokens = 1 << 20;
  other.kv_heads = 3;
  other.head_dim = 36;  // 216 bytes
  EXPECT_FALSE(takes(other, *h200));
  other.head_dim = 40;
  other.cache_dtype = DType::kF8E4M3FN;
  EXPECT_TRUE(takes(other, *h200));
}

TEST(Specs, SlotTypeAndTypesAreDefines) {
  const cuda::DeviceInfo a100 = cuda::KnownDevices().front();
  Problem problem;
  problem.input_dtype = DType::kF16;
  problem.slot_dtype = DType::kI64;
  problem.cache_dtype = DType::kF8E5M2;
  problem.head_dim = 80;
  EXPECT_THAT(ChooseConfig(problem, a100).kernel.defines,
              testing::ElementsAre("INPUT_TYPE=F16", "CACHE_TYPE=E5M2", "HEAD_DIM=80", "VECTOR=8",
                                   "SLOT_TYPE_64"));
  problem.slot_dtype = DType::kI32;
  EXPECT_EQ(ChooseConfig(problem, a100).kernel.defines.size(), 4u);
  EXPECT_THAT(ChooseConfig(problem, a100, /*aligned=*/false).kernel.defines,
              testing::ElementsAre("INPUT_TYPE=F16", "CACHE_TYPE=E5M2", "HEAD_DIM=80", "VECTOR=1",
                                   "UNALIGNED"));
}

TEST(CheckComputeCapability, NamesIt) {
  cuda::DeviceInfo device;
  device.name = "a GPU";
  device.compute_major = 7;
  const Status status = cuda::CheckComputeCapability("update_kv_cache", device);
  EXPECT_THAT(status.message(), testing::HasSubstr("compute capability 7.0"));
  device.compute_major = 8;
  EXPECT_TRUE(cuda::CheckComputeCapability("update_kv_cache", device).ok());
}

}  // namespace
}  // namespace xla_gpu::update_kv_cache
