#include "src/cuda/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

using testing::HasSubstr;

// Empty files under the names that installations have.
class FakeNvrtcs : public testing::Test {
 protected:
  void Add(const std::string& place, const std::string& library, const std::string& builtins) {
    folder_.Write(place + "/" + library, "");
    if (!builtins.empty()) folder_.Write(place + "/" + builtins, "");
    paths_ += (paths_.empty() ? "" : ":") + folder_.path(place);
    setenv("XLA_GPU_NVRTC", paths_.c_str(), 1);
  }

  TempFolder folder_;
  ScopedEnv env_{"XLA_GPU_NVRTC", ""};
  std::string paths_;
};

TEST_F(FakeNvrtcs, TheNewestIsChosen) {
  Add("toolkit", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0");
  Add("pip", "libnvrtc.so.13", "libnvrtc-builtins.so.13.5");
  Add("old", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9");
  auto chosen = SelectNvrtc(0);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  EXPECT_EQ(chosen->Version(), "13.5");
  EXPECT_THAT(chosen->path, HasSubstr("/pip/libnvrtc.so.13"));
  EXPECT_THAT(chosen->builtins, HasSubstr("/pip/libnvrtc-builtins.so.13.5"));
  EXPECT_EQ(SelectNvrtc(13000)->Version(), "13.5");
}

TEST_F(FakeNvrtcs, ADriverDoesNotRunTheCodeOfTheNextMajorVersion) {
  Add("new", "libnvrtc.so.13", "libnvrtc-builtins.so.13.5");
  EXPECT_FALSE(SelectNvrtc(12080).ok());
  EXPECT_THAT(SelectNvrtc(12080).status().message(),
              testing::AllOf(HasSubstr("CUDA 12.x only"), HasSubstr("nvidia-cuda-nvrtc-cu12")));
  Add("old", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9");
  EXPECT_EQ(SelectNvrtc(12080)->Version(), "12.9");
}

TEST_F(FakeNvrtcs, ToolkitNamesGiveTheExactVersion) {
  Add("both", "libnvrtc.so.12.4.127", "libnvrtc-builtins.so.12.4.127");
  Add("both", "libnvrtc.so.12.6.20", "libnvrtc-builtins.so.12.6.20");
  const auto found = FindNvrtcs();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].Version(), "12.6");
  EXPECT_THAT(found[0].builtins, HasSubstr("12.6.20"));
  EXPECT_EQ(found[1].Version(), "12.4");
  EXPECT_THAT(found[1].builtins, HasSubstr("12.4.127"));
}

TEST_F(FakeNvrtcs, ReasonsAreGiven) {
  Add("alone", "libnvrtc.so.13", "");
  Add("ancient", "libnvrtc.so.11.2", "libnvrtc-builtins.so.11.8");
  const Status status = SelectNvrtc(0).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("libnvrtc-builtins.so is not beside it"));
  EXPECT_THAT(status.message(), HasSubstr("version 11.8, but it is older than 12.0"));
  EXPECT_THAT(status.message(), HasSubstr("pip install nvidia-cuda-nvrtc"));
}

TEST_F(FakeNvrtcs, OneThatDoesNotLoadIsPassedOver) {
  Add("bad", "libnvrtc.so.13", "libnvrtc-builtins.so.13.5");
  Add("good", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9");
  MarkNvrtcUnusable(SelectNvrtc(0)->path, "file too short");
  EXPECT_EQ(SelectNvrtc(0)->Version(), "12.9");
  EXPECT_EQ(FindNvrtcs()[0].problem, "file too short");
}

TEST_F(FakeNvrtcs, LinksToOneLibraryCountOnce) {
  Add("lib", "libnvrtc.so.13.5.88", "libnvrtc-builtins.so.13.5.88");
  std::filesystem::create_symlink("libnvrtc.so.13.5.88", folder_.path("lib/libnvrtc.so.13"));
  std::filesystem::create_directory_symlink(folder_.path("lib"), folder_.path("lib64"));
  ScopedEnv env("XLA_GPU_NVRTC", folder_.path("lib") + ":" + folder_.path("lib64"));
  EXPECT_EQ(FindNvrtcs().size(), 1u);
}

TEST_F(FakeNvrtcs, AFileMayBeNamedAndAMissingOneIsSaid) {
  Add("pip", "libnvrtc.so.13", "libnvrtc-builtins.so.13.5");
  {
    ScopedEnv env("XLA_GPU_NVRTC", folder_.path("pip/libnvrtc.so.13"));
    EXPECT_EQ(SelectNvrtc(0)->Version(), "13.5");
  }
  ScopedEnv env("XLA_GPU_NVRTC", "/nowhere/libnvrtc.so");
  EXPECT_THAT(SelectNvrtc(0).status().message(), HasSubstr("No such file"));
}

TEST_F(FakeNvrtcs, PipPackagesAndCudaHomeAreSearched) {
  Add("venv/lib/python3.11/site-packages/nvidia/cu99/lib", "libnvrtc.so.99",
      "libnvrtc-builtins.so.99.1");
  Add("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib", "libnvrtc.so.97",
      "libnvrtc-builtins.so.97.1");
  Add("home/lib64", "libnvrtc.so.98", "libnvrtc-builtins.so.98.1");
  ScopedEnv none("XLA_GPU_NVRTC", nullptr);
  ScopedEnv venv("VIRTUAL_ENV", folder_.path("venv"));
  ScopedEnv home("CUDA_HOME", folder_.path("home"));
  const auto found = FindNvrtcs();
  ASSERT_GE(found.size(), 3u);
  EXPECT_EQ(found[0].Version() + " " + found[0].origin, "99.1 pip package");
  EXPECT_EQ(found[1].Version() + " " + found[1].origin, "98.1 CUDA_HOME");
  EXPECT_EQ(found[2].Version() + " " + found[2].origin, "97.1 pip package");
}

TEST_F(FakeNvrtcs, FoldersMayHaveAnyName) {
  ScopedEnv none("XLA_GPU_NVRTC", nullptr);
  for (const char* name : {"a [b] c", "*", "q?", "back\\slash", "{x,y}", "~"}) {
    const std::string prefix = folder_.path(name);
    const std::string lib = std::string(name) + "/lib/python3.11/site-packages/nvidia/cu99/lib/";
    folder_.Write(lib + "libnvrtc.so.99", "");
    folder_.Write(lib + "libnvrtc-builtins.so.99.1", "");
    ScopedEnv venv("VIRTUAL_ENV", prefix);
    EXPECT_THAT(FindNvrtcs().at(0).path, HasSubstr(prefix)) << name;
    std::filesystem::remove_all(prefix);
  }
}

TEST_F(FakeNvrtcs, APipeIsNoLibrary) {
  Add("pipe", "libnvrtc.so.13", "");
  ASSERT_EQ(mkfifo(folder_.path("pipe/libnvrtc-builtins.so.13.5").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(folder_.path("pipe/libnvrtc.so").c_str(), 0600), 0);
  EXPECT_THAT(FindNvrtcs().at(0).problem, HasSubstr("libnvrtc-builtins.so is not beside it"));
  ScopedEnv env("XLA_GPU_NVRTC", folder_.path("pipe/libnvrtc.so"));
  EXPECT_EQ(FindNvrtcs().at(0).problem, "it is no regular file");
}

TEST(Nvrtc, WhatIsInstalledIsFound) {
  auto chosen = SelectNvrtc(0);
  if (!chosen.ok()) GTEST_SKIP() << chosen.status().message();
  EXPECT_GE(chosen->major, 12);
  EXPECT_TRUE(std::filesystem::exists(chosen->path));
  EXPECT_TRUE(std::filesystem::exists(chosen->builtins));
}

}  // namespace
}  // namespace xla_gpu::cuda
