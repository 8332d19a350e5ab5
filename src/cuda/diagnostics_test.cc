#include "src/cuda/diagnostics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

using testing::HasSubstr;

TEST(Diagnostics, SaysWhatIsHereAndWhatIsMissing) {
  TempFolder folder;
  ScopedEnv env("XLA_GPU_CACHE_DIR", folder.path("cache"));
  const Diagnostics d = Diagnose();
  if (d.driver.ok()) {
    EXPECT_GE(d.driver_version, 10000);
  } else {
    EXPECT_THAT(d.driver.message(), HasSubstr("libcuda"));
    EXPECT_EQ(d.driver_version, 0);
    EXPECT_TRUE(d.devices.empty());
    EXPECT_FALSE(d.ok());
  }
  const auto chosen = std::ranges::count_if(d.nvrtcs, &NvrtcDiagnosis::chosen);
  EXPECT_EQ(chosen, d.nvrtc.ok() ? 1 : 0);
  EXPECT_TRUE(d.compiler.ok()) << d.compiler.ToString();
  EXPECT_TRUE(d.cache.status.ok()) << d.cache.status.ToString();
  EXPECT_EQ(d.cache.folder, folder.path("cache"));
  EXPECT_EQ(d.cache.num_kernels, 0);
}

TEST(Diagnostics, NothingFails) {
  ScopedEnv cache("XLA_GPU_CACHE_DIR", "/dev/null/cache");
  ScopedEnv nvrtc("XLA_GPU_NVRTC", "/nowhere/libnvrtc.so.13");
  ScopedEnv compiler("XLA_GPU_COMPILER", "/nowhere/compiler");
  const Diagnostics d = Diagnose();
  EXPECT_FALSE(d.ok());
  EXPECT_FALSE(d.cache.status.ok());
  EXPECT_FALSE(d.nvrtc.ok());
  EXPECT_FALSE(d.compiler.ok());
  ASSERT_EQ(d.nvrtcs.size(), 1u);
  EXPECT_NE(d.nvrtcs[0].problem, "");
}

}  // namespace
}  // namespace xla_gpu::cuda
