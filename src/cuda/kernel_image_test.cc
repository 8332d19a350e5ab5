// From KernelSpec to machine code: memory, disk, several processes, and what can go wrong.
#include "src/cuda/kernel_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "src/cuda/compile_protocol.h"
#include "src/cuda/compiler.h"
#include "src/cuda/disk_cache.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kSource[] = "src/ops/simple_add/cuda/simple_add.cu";

// A spec that no other test has: what is in memory is shared by the whole process.
KernelSpec FreshSpec() {
  static int count = 0;
  return {kSource, "simple_add", {"ELEMENT_F32", "FRESH=" + std::to_string(count++)}};
}

class KernelImageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto nvrtc = SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
    auto real = FindCompilerProgram();
    ASSERT_TRUE(real.ok()) << real.status().ToString();
    // Counts the compilations, slowly enough for others to come meanwhile.
    const std::string script = "echo x >>" + folder_.path("count") + "; sleep 0.2; exec " + *real;
    compiler_.emplace("XLA_GPU_COMPILER", folder_.WriteScript("compiler", script));
    cache_.emplace("XLA_GPU_CACHE_DIR", folder_.path("cache"));
  }
  size_t NumCompilations() { return ReadWhole(folder_.path("count")).size() / 2; }
  // In a process of its own, so with nothing in memory.
  bool GetInNewProcess(const KernelSpec& spec) {
    return RunForked([&] { return GetKernelImage(spec, "sm_80", 0).ok(); }) == 0;
  }
  std::vector<std::string> Entries() {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(folder_.path("cache"))) {
      paths.push_back(entry.path().string());
    }
    return paths;
  }

  TempFolder folder_;
  std::optional<ScopedEnv> compiler_, cache_;
};

TEST_F(KernelImageTest, CompiledOnceThenFromMemoryThenFromDisk) {
  const KernelSpec spec = FreshSpec();
  auto first = GetKernelImage(spec, "sm_80", 0);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_FALSE((*first)->from_disk);
  EXPECT_EQ(*GetKernelImage(spec, "sm_80", 0), *first);
  EXPECT_EQ(RunForked([&] {
              auto image = GetKernelImage(spec, "sm_80", 0);
              return image.ok() && (*image)->cubin == (*first)->cubin;
            }),
            0);
  EXPECT_EQ(NumCompilations(), 1u);
}

TEST_F(KernelImageTest, WhatTheCodeDependsOnIsInTheKey) {
  KernelSpec spec = FreshSpec();
  ASSERT_TRUE(GetKernelImage(spec, "sm_80", 0).ok());
  ASSERT_TRUE(GetKernelImage(spec, "sm_90a", 0).ok());
  spec.defines.push_back("OTHER=1");
  ASSERT_TRUE(GetKernelImage(spec, "sm_80", 0).ok());
  EXPECT_EQ(NumCompilations(), 3u);
  EXPECT_EQ(Entries().size(), 3u);
}

// NVRTC finds files beside the source, and beside what it includes.
TEST_F(KernelImageTest, WhatAUsersTextIncludesIsInTheKey) {
  KernelSpec spec{.source = folder_.path("user/f.cu"),
                  .entry = "f",
                  .text =
                      "#include \"inner/a.h\"\n#include <c.h>\n__global__ void f(int* x) { *x = "
                      "A; }",
                  .options = {"-I" + folder_.path("lib")}};
  folder_.Write("user/inner/a.h", "#include \"b.h\"\n");
  folder_.Write("user/inner/b.h", "#define A 1\n");
  folder_.Write("lib/c.h", "\n");
  for (const char* changed : {"user/inner/a.h", "user/inner/b.h", "lib/c.h"}) {
    EXPECT_TRUE(GetInNewProcess(spec));
    folder_.Write(changed, ReadWhole(folder_.path(changed)) + "\n");
  }
  EXPECT_TRUE(GetInNewProcess(spec));
  EXPECT_TRUE(GetInNewProcess(spec));
  EXPECT_EQ(NumCompilations(), 4u);
}

TEST_F(KernelImageTest, ProcessesAndThreadsAtOnceCompileOnce) {
  const KernelSpec spec = FreshSpec();
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(GetKernelImage(spec, "sm_80", 0).ok() ? 0 : 1);
    children.push_back(pid);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(GetKernelImage(spec, "sm_80", 0).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(NumCompilations(), 1u);
  EXPECT_EQ(Entries().size(), 1u);  // the lock and temporary files are gone
}

TEST_F(KernelImageTest, ADamagedEntryIsMadeAgain) {
  const KernelSpec spec = FreshSpec();
  ASSERT_TRUE(GetInNewProcess(spec));
  ASSERT_EQ(Entries().size(), 1u);
  const std::string good = ReadWhole(Entries()[0]);
  std::ofstream(Entries()[0], std::ios::binary) << good.substr(0, good.size() / 2);
  ASSERT_TRUE(GetInNewProcess(spec));
  EXPECT_EQ(NumCompilations(), 2u);
  EXPECT_EQ(ReadWhole(Entries()[0]).size(), good.size());
  ASSERT_TRUE(GetInNewProcess(spec));
  EXPECT_EQ(NumCompilations(), 2u);
}

// With a compiler that answers, and ends as it should, but makes no machine code.
TEST_F(KernelImageTest, WhatIsNoMachineCodeIsNotKept) {
  const std::string whole = TinyCubin();
  for (const std::string& cubin : {std::string(), std::string("junk"), std::string(5000, '\0'),
                                   whole.substr(0, whole.size() - 1), whole.substr(0, 64)}) {
    const std::string answer =
        folder_.Write("answer", Encode(CompileResponse{CompileResponse::Outcome::kOk, "", cubin}));
    ScopedEnv env("XLA_GPU_COMPILER", folder_.WriteScript("fake", "cat >/dev/null; cat " + answer));
    const Status status = GetKernelImage(FreshSpec(), "sm_80", 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("(" + std::to_string(cubin.size()) + " bytes) is no"));
  }
  EXPECT_EQ(Entries().size(), 0u);
}

TEST_F(KernelImageTest, AnEntryThatHoldsNoMachineCodeIsMadeAgain) {
  const KernelSpec spec = FreshSpec();
  ASSERT_TRUE(GetInNewProcess(spec));
  ASSERT_EQ(Entries().size(), 1u);
  std::optional<CacheEntry> entry = ParseCacheEntry(ReadWhole(Entries()[0]));
  ASSERT_TRUE(entry.has_value());
  entry->cubin = "junk";
  std::ofstream(Entries()[0], std::ios::binary) << SerializeCacheEntry(*entry);
  ASSERT_TRUE(GetInNewProcess(spec));
  EXPECT_EQ(NumCompilations(), 2u);
  EXPECT_THAT(ParseCacheEntry(ReadWhole(Entries()[0]))->cubin, testing::StartsWith("\177ELF"));
}

TEST_F(KernelImageTest, WithoutAFolderItWorksAndWarnsOnce) {
  ScopedEnv env("XLA_GPU_CACHE_DIR", folder_.Write("file", "") + "/cache");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(GetKernelImage(FreshSpec(), "sm_80", 0).ok());
  EXPECT_TRUE(GetKernelImage(FreshSpec(), "sm_80", 0).ok());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("xla_gpu: warning: cuda: cache folder"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said;
}

TEST_F(KernelImageTest, SwitchedOffItIsSilent) {
  ScopedEnv env("XLA_GPU_CACHE_DIR", "");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(GetKernelImage(FreshSpec(), "sm_80", 0).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(fs::exists(folder_.path("cache")));
}

TEST_F(KernelImageTest, AnErrorIsNotKept) {
  KernelSpec spec = FreshSpec();
  {
    ScopedEnv env("XLA_GPU_COMPILER", folder_.WriteScript("crash", "kill -SEGV $$"));
    EXPECT_THAT(GetKernelImage(spec, "sm_80", 0).status().message(), HasSubstr("signal 11"));
  }
  EXPECT_TRUE(GetKernelImage(spec, "sm_80", 0).ok());
  spec.defines = {"ELEMENT_NONSENSE"};
  EXPECT_THAT(GetKernelImage(spec, "sm_80", 0).status().message(),
              testing::AllOf(HasSubstr("ELEMENT_NONSENSE"), HasSubstr("define one of")));
  EXPECT_EQ(Entries().size(), 1u);
}

TEST_F(KernelImageTest, AnNvrtcThatDoesNotLoadIsPassedOver) {
  const std::string real = fs::path(SelectNvrtc(0)->path).parent_path().string();
  folder_.Write("broken/libnvrtc.so.99", "no library");
  folder_.Write("broken/libnvrtc-builtins.so.99.0", "");
  ScopedEnv env("XLA_GPU_NVRTC", folder_.path("broken") + ":" + real);
  EXPECT_EQ(SelectNvrtc(0)->major, 99);
  auto image = GetKernelImage(FreshSpec(), "sm_80", 0);
  EXPECT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_LT(SelectNvrtc(0)->major, 99);
}

TEST(UsersImage, OneThatIsCutShortIsRefused) {
  const auto get = [](const std::string& image) {
    return GetKernelImage({.source = "f.cubin", .entry = "f", .image = image}, "sm_80", 0).status();
  };
  const std::string cubin = TinyCubin();
  const std::string fatbin("\x50\xed\x55\xba\1\0\x10\0\5\0\0\0\0\0\0\0\1\2\3\4\5", 21);
  for (const std::string& whole : {cubin, fatbin, std::string(".version 8.0\n")}) {
    EXPECT_TRUE(get(whole).ok()) << get(whole).message();
  }
  EXPECT_EQ(
      get(cubin.substr(0, 100)).message(),
      "cuda: the image of kernel f (100 bytes) is an ELF file, but no whole machine code of a "
      "GPU");
  for (const size_t size : {4u, 15u, 16u, 20u}) {
    EXPECT_THAT(get(fatbin.substr(0, size)).message(), HasSubstr("bytes) is a fatbin that is cut"));
  }
}

TEST(CollectSources, AnUnknownPathIsAnError) {
  EXPECT_THAT(CollectSources("src/nowhere.cu").status().message(),
              HasSubstr("no device source is embedded under src/nowhere.cu"));
  auto sources = CollectSources(kSource);
  ASSERT_TRUE(sources.ok());
  EXPECT_EQ((*sources)[0].first, kSource);
}

}  // namespace
}  // namespace xla_gpu::cuda
