// The choice of update_kv_cache's kernels, on the Host alone.
#include "src/ops/update_kv_cache/cuda/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Specs, SlotTypeAndTypesAreDefines) {
  Problem problem;
  problem.input_dtype = DType::kF16;
  problem.slot_dtype = DType::kI64;
  problem.cache_dtype = DType::kF8E5M2;
  problem.head_dim = 80;
  EXPECT_THAT(UpdateSpec(problem).defines,
              testing::ElementsAre("INPUT_TYPE=F16", "CACHE_TYPE=E5M2", "HEAD_DIM=80", "VECTOR=8",
                                   "SLOT_TYPE_64"));
  problem.slot_dtype = DType::kI32;
  EXPECT_EQ(UpdateSpec(problem).defines.size(), 4u);
  EXPECT_THAT(UpdateSpec(problem, /*aligned=*/false).defines,
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
