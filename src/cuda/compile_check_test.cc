// Every kernel that an op registers compiles for GPUs of each kind, without a GPU and without the
// disk cache. XLA_GPU_TEST_ARCHS names others in their place ("sm_120a sm_103a"): a minute and more
// of two cores each, which CI does not pay. NVRTC 13.0, which comes with torch, crashes where newer
// ones do not: a new kernel is compiled with it too, by XLA_GPU_NVRTC.
#include "src/cuda/kernel_specs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "src/core/file.h"
#include "src/core/strings.h"
#include "src/cuda/nvrtc.h"

namespace xla_gpu::cuda {
namespace {

class CompileCheck : public testing::TestWithParam<std::string> {};

TEST_P(CompileCheck, EveryRegisteredKernelCompiles) {
  setenv("XLA_GPU_CACHE_DIR", "", 1);
  const auto nvrtc = SelectNvrtc(0);
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  std::printf("NVRTC %s: %s\n", nvrtc->Version().c_str(), nvrtc->path.c_str());
  const auto device = std::ranges::find(KnownDevices(), GetParam(), &DeviceInfo::Arch);
  ASSERT_NE(device, KnownDevices().end());
  const std::vector<RegisteredSpec> specs = AllKernelSpecs(*device);
  ASSERT_FALSE(specs.empty());

  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t done = 0;
  auto work = [&] {
    for (size_t i = next++; i < specs.size(); i = next++) {
      auto compiled = CompileKernel(specs[i].spec, GetParam());
      std::lock_guard<std::mutex> lock(mutex);
      std::printf("%s %zu/%zu %s %s\n", GetParam().c_str(), ++done, specs.size(),
                  specs[i].op.c_str(), compiled.ok() ? "ok" : "FAILED");
      std::fflush(stdout);
      if (!compiled.ok()) {
        ADD_FAILURE() << compiled.status().ToString();
      } else {
        EXPECT_GT(compiled->cubin_bytes, 0u);
        EXPECT_EQ(compiled->log, "") << specs[i].spec.source << " compiles with warnings with "
                                     << StrJoin(specs[i].spec.defines, " ");
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
}

std::vector<std::string> Archs() {
  const std::string chosen = Env("XLA_GPU_TEST_ARCHS");
  return chosen.empty() ? std::vector<std::string>{"sm_80", "sm_89", "sm_90a", "sm_100a"}
                        : Split(chosen, ' ');
}

INSTANTIATE_TEST_SUITE_P(Architectures, CompileCheck, testing::ValuesIn(Archs()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace xla_gpu::cuda
