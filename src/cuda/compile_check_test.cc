// Every kernel that an op registers compiles for GPUs of each kind, without a GPU and without the
// disk cache. XLA_GPU_TEST_ARCHS names others in their place ("sm_86 sm_103a"). NVRTC 13.0, which
// comes with torch, crashes where newer ones do not: a new kernel is compiled with it too, by
// XLA_GPU_NVRTC.
#include "src/cuda/kernel_specs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "src/core/file.h"
#include "src/core/strings.h"
#include "src/cuda/embedded_sources.h"
#include "src/cuda/kernel_image.h"
#include "src/cuda/nvrtc.h"

namespace xla_gpu::cuda {
namespace {

struct Image {
  std::string arch;
  RegisteredSpec of;
};

// What an architecture runs of a source is said by its defines, but for fp8's conversions, which
// are instructions from sm_89 on, and for launches that overlap, two instructions: so what one has
// compiled is left out of those after it, but for the first image of each source.
std::vector<Image> Images(const std::vector<std::string>& archs) {
  std::vector<Image> images;
  std::set<std::string> compiled;
  for (const std::string& arch : archs) {
    const auto device = std::ranges::find(KnownDevices(), arch, &DeviceInfo::Arch);
    EXPECT_NE(device, KnownDevices().end()) << arch;
    if (device == KnownDevices().end()) continue;
    for (RegisteredSpec& spec : AllKernelSpecs(*device)) {
      const std::string& source = spec.spec.source;
      std::string image = source + " " + StrJoin(spec.spec.defines, " ");
      const bool fp8 = image.find("=E4M3") != image.npos || image.find("=E5M2") != image.npos;
      if (fp8 && 10 * device->compute_major + device->compute_minor >= 89) {
        image += " by instructions";
      }
      const bool first = compiled.insert(source + " for " + arch).second;
      const bool is_new = compiled.insert(image).second;
      if (is_new || first) images.push_back({arch, std::move(spec)});
    }
  }
  return images;
}

TEST(CompileCheck, EveryRegisteredKernelCompiles) {
  setenv("XLA_GPU_CACHE_DIR", "", 1);
  const auto nvrtc = SelectNvrtc(0);
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  std::printf("NVRTC %s: %s\n", nvrtc->Version().c_str(), nvrtc->path.c_str());
  const std::string chosen = Env("XLA_GPU_TEST_ARCHS");
  const std::vector<Image> images =
      Images(Split(chosen.empty() ? "sm_80 sm_89 sm_90a sm_100a sm_120a" : chosen, ' '));
  ASSERT_FALSE(images.empty());

  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t done = 0;
  auto work = [&] {
    for (size_t i = next++; i < images.size(); i = next++) {
      const auto& [arch, of] = images[i];
      auto compiled = CompileKernel(of.spec, arch);
      std::lock_guard<std::mutex> lock(mutex);
      std::printf("%s %zu/%zu %s %s\n", arch.c_str(), ++done, images.size(), of.op.c_str(),
                  compiled.ok() ? "ok" : "FAILED");
      std::fflush(stdout);
      if (!compiled.ok()) {
        ADD_FAILURE() << compiled.status().ToString();
      } else {
        EXPECT_GT(compiled->cubin_bytes, 0u);
        EXPECT_EQ(compiled->log, "") << Describe(of.spec, arch) << " compiles with warnings";
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
}

// What Images rests on.
TEST(CompileCheck, SourcesBranchOnTheArchitectureInTwoFilesOnly) {
  for (const EmbeddedSource* source = EmbeddedSources(); *source->path != '\0'; ++source) {
    const std::string path = source->path;
    if (path == "src/cuda/numeric.cuh" || path == "src/cuda/ptx.cuh") continue;
    EXPECT_EQ(std::string(source->text).find("__CUDA_ARCH"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace xla_gpu::cuda
