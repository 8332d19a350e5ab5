#include "src/cuda/ptxas_log.h"

#include <gtest/gtest.h>

namespace xla_gpu::cuda {
namespace {

constexpr char kLog[] = R"(a.cu(3): warning #177-D: variable "x" was declared but never referenced

ptxas info    : 24 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z5scaleIfEvPT_' for 'sm_90a'
ptxas info    : Function properties for _Z5scaleIfEvPT_
    408 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 408 bytes cumulative stack size, 1024 bytes smem, 544 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 10.1 ms
ptxas info    : Compiling entry function 'copy' for 'sm_90a'
ptxas info    : Function properties for copy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
)";

TEST(PtxasLog, EachKernel) {
  const auto kernels = ParsePtxasLog(kLog);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].kernel, "_Z5scaleIfEvPT_");
  EXPECT_EQ(kernels[0].registers, 168);
  EXPECT_EQ(kernels[0].barriers, 2);
  EXPECT_EQ(kernels[0].stack_bytes, 408);
  EXPECT_EQ(kernels[0].spill_store_bytes, 12);
  EXPECT_EQ(kernels[0].spill_load_bytes, 16);
  EXPECT_EQ(kernels[0].shared_bytes, 1024);
  EXPECT_EQ(kernels[1].kernel, "copy");
  EXPECT_EQ(kernels[1].registers, 8);
  EXPECT_EQ(kernels[1].shared_bytes, 0);
  EXPECT_TRUE(ParsePtxasLog("").empty());
  EXPECT_TRUE(ParsePtxasLog("Used 5 registers").empty());
}

TEST(PtxasLog, MaxThreads) {
  const auto of = [](int64_t registers, std::string_view ptx = "") {
    return MaxThreads({.kernel = "f", .registers = registers}, ptx);
  };
  EXPECT_EQ(of(0), 1024);
  EXPECT_EQ(of(64), 1024);
  EXPECT_EQ(of(65), 896);
  EXPECT_EQ(of(168), 384);
  EXPECT_EQ(of(255), 256);
  EXPECT_EQ(of(255, ".visible .entry f(\n.param .u64 f_param_0\n)\n.maxntid 128, 2, 1\n{"), 256);
  EXPECT_EQ(of(8, ".visible .entry f(\n)\n.maxntid 96\n{"), 96);
  EXPECT_EQ(of(8, ".visible .entry ff(\n)\n.maxntid 96\n{"), 1024);
  EXPECT_EQ(of(8, ".visible .entry f(\n)\n{ .maxntid 96"), 1024);
}

}  // namespace
}  // namespace xla_gpu::cuda
