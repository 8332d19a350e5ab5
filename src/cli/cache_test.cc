// xla-gpu cache, as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/child_process.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/test_util.h"

namespace xla_gpu::cli {
namespace {

using testing::HasSubstr;

class CacheCommand : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("XLA_GPU_PROGRAM") == nullptr) GTEST_SKIP() << "run this test through ctest";
  }
  static ChildResult Run(std::vector<std::string> args) {
    args.insert(args.begin(), {std::getenv("XLA_GPU_PROGRAM"), "cache"});
    auto child = RunChild(args, "", std::chrono::seconds(300));
    EXPECT_TRUE(child.ok()) << child.status().ToString();
    return child.ok() ? *child : ChildResult();
  }

  cuda::TempFolder folder_;
  cuda::ScopedEnv cache_{"XLA_GPU_CACHE_DIR", folder_.path("cache")};
};

TEST_F(CacheCommand, WarmListClear) {
  if (auto nvrtc = cuda::SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  const std::vector<std::string> warm = {"warm",       "--arch", "sm_80", "--op",
                                         "simple_add", "--arch", "sm_80"};  // said twice, made once
  const auto first = Run(warm);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("4 compiled, 0 present, 0 failed"));
  EXPECT_THAT(Run(warm).out, HasSubstr("0 compiled, 4 present, 0 failed"));

  EXPECT_THAT(Run({"list"}).out, HasSubstr("simple_add.cu:simple_add [ELEMENT_BF16] for sm_80"));
  const auto listing = nlohmann::json::parse(Run({"list", "--json"}).out);
  EXPECT_EQ(listing["folder"], folder_.path("cache"));
  ASSERT_EQ(listing["kernels"].size(), 4u);
  EXPECT_EQ(listing["kernels"][0]["valid"], true);

  EXPECT_EQ(Run({"clear"}).out, "4 kernels removed\n");
  EXPECT_THAT(Run({"list"}).out, testing::StartsWith("0 kernels"));
}

TEST_F(CacheCommand, AKernelThatFailsIsCountedAndTheRestGoesOn) {
  if (auto nvrtc = cuda::SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  cuda::ScopedEnv compiler("XLA_GPU_COMPILER", folder_.WriteScript("crash", "kill -SEGV $$"));
  const auto warm = Run({"warm", "--arch", "sm_80", "--op", "simple_add"});
  EXPECT_EQ(warm.exit_code, 1);
  EXPECT_THAT(warm.out, HasSubstr("0 compiled, 0 present, 4 failed"));
  const size_t first = warm.err.find("signal 11");
  EXPECT_NE(first, std::string::npos) << warm.err;
  EXPECT_EQ(warm.err.find("signal 11", first + 1), std::string::npos) << warm.err;
}

TEST_F(CacheCommand, AFullDiskEndsWarmingWithItsReason) {
  if (auto nvrtc = cuda::SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  const auto warm = RunChild({"/bin/sh", "-c",
                              "trap '' XFSZ; ulimit -f 1; exec \"$0\" cache warm --arch sm_80 --op "
                              "simple_add --jobs 1",
                              std::getenv("XLA_GPU_PROGRAM")},
                             "", std::chrono::seconds(300));
  ASSERT_TRUE(warm.ok());
  EXPECT_EQ(warm->exit_code, 1) << warm->out;
  EXPECT_THAT(warm->err, HasSubstr("xla-gpu cache warm: FAILED_PRECONDITION: cuda: a kernel could "
                                   "not be kept in cache folder " +
                                   folder_.path("cache") + ": write: File too large"));
  EXPECT_THAT(warm->out, testing::Not(HasSubstr("failed")));
}

TEST_F(CacheCommand, LookingMakesNothing) {
  EXPECT_THAT(Run({"list"}).out, testing::StartsWith("0 kernels"));
  EXPECT_EQ(Run({"clear"}).out, "0 kernels removed\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("cache")));
}

TEST_F(CacheCommand, WrongUsageAndFailuresHaveTheirExitCodes) {
  cuda::ScopedEnv no_gpu("CUDA_VISIBLE_DEVICES", "");
  const struct {
    std::vector<std::string> args;
    int code;
    const char* message;
  } cases[] = {
      {{}, 2, "usage: xla-gpu cache COMMAND"},
      {{"warn"}, 2, "no command is named 'cache warn'; did you mean cache warm?"},
      {{"list", "x"}, 2, "cache list: argument x is unknown"},
      {{"clear", "x"}, 2, "cache clear: argument x is unknown"},
      {{"clear", "--json"}, 2, "cache clear: option --json is unknown"},
      {{"warm", "--arch"}, 2, "--arch needs a value; allowed: sm_80, sm_86"},
      {{"warm", "--arch", "hopper"}, 2, "--arch is 'hopper'; allowed: sm_80, sm_86"},
      {{"warm", "--arch", "sm_90"}, 2, "did you mean sm_90a?"},
      {{"warm"}, 2, "--arch is needed: one or more of sm_80, sm_86"},
      {{"warm", "x", "y"}, 2, "argument x is unknown"},
      {{"warm", "--jobs", "0"}, 2, "--jobs is '0'; it must be a whole number from 1 to 256"},
      {{"warm", "--arch", "sm_80", "--op", "simple_ad"}, 2, "did you mean simple_add?"},
  };
  for (const auto& c : cases) {
    const auto child = Run(c.args);
    EXPECT_EQ(child.exit_code, c.code) << c.message;
    EXPECT_THAT(child.err, HasSubstr(c.message));
  }
  cuda::ScopedEnv off("XLA_GPU_CACHE_DIR", "");
  const auto list = Run({"list"});
  EXPECT_EQ(list.exit_code, 1);
  EXPECT_THAT(list.err, HasSubstr("XLA_GPU_CACHE_DIR is empty"));
}

}  // namespace
}  // namespace xla_gpu::cli
