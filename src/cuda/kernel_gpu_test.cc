// Devices and kernels on a real GPU; skipped where there is none.
#include "src/cuda/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "src/core/op_registry.h"
#include "src/cuda/device.h"
#include "src/cuda/gpu_testing.h"

namespace xla_gpu::cuda {
namespace {

using testing::HasSubstr;

const KernelSpec kAdd = {"src/ops/simple_add/cuda/simple_add.cu", "simple_add", {"ELEMENT_F32"}};

class KernelGpuTest : public GpuTest {};

TEST_F(KernelGpuTest, DeviceInfoIsPlausible) {
  auto info = GetDeviceInfo(0);
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  const DeviceInfo& device = **info;
  std::printf("%s, %s, %d SMs, %lld KiB shared, %lld MiB L2, %lld MiB\n", device.name.c_str(),
              device.Arch().c_str(), device.num_sms,
              static_cast<long long>(device.max_shared_memory_per_block >> 10),
              static_cast<long long>(device.l2_bytes >> 20),
              static_cast<long long>(device.memory_bytes >> 20));
  EXPECT_NE(device.name, "");
  EXPECT_GE(device.compute_major, 5);
  EXPECT_GT(device.num_sms, 0);
  EXPECT_GE(device.max_shared_memory_per_block, 48 << 10);
  EXPECT_GT(device.l2_bytes, 0);
  EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
  const auto known = std::ranges::find(KnownDevices(), device.Arch(), &DeviceInfo::Arch);
  if (known != KnownDevices().end()) {
    EXPECT_EQ(known->max_shared_memory_per_block, device.max_shared_memory_per_block);
  }
  EXPECT_EQ(*GetDeviceInfo(0), *info);  // read once
  EXPECT_THAT(GetDeviceInfo(999).status().message(), HasSubstr("device 999 does not exist"));
  EXPECT_FALSE(GetDeviceInfo(-1).ok());
}

TEST_F(KernelGpuTest, CurrentDeviceIsThatOfTheContext) {
  EXPECT_EQ(CurrentDevice(Platform::kCuda), 0);
  std::thread([] { EXPECT_EQ(CurrentDevice(Platform::kCuda), 0); }).join();  // without a context
  auto count = DeviceCount();
  for (int i = 0; i < *count; ++i) {
    ScopedPrimaryContext context(**GetDriver(), i);
    EXPECT_EQ(CurrentDevice(Platform::kCuda), i);
  }
}

// c = a + b by the kernel itself.
Status LaunchAdd(const Kernel& kernel, float* a, float* b, float* c, int64_t n, void* stream) {
  LaunchConfig config;
  config.block[0] = 256;
  config.grid[0] = static_cast<uint32_t>((n + 1023) / 1024);
  void* params[] = {&a, &b, &c, &n};
  return kernel.Launch(config, params, stream);
}

TEST_F(KernelGpuTest, LaunchesFromAThreadThatHadNoContext) {
  std::thread([] {
    auto kernel = GetKernel(kAdd, 0, 0);  // as while XLA instantiates a call
    ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
    ScopedPrimaryContext context(**GetDriver(), 0);
    DeviceBuffer<float> a({1, 2, 3}), b({10, 20, 30}), c(3);
    ASSERT_TRUE(LaunchAdd(**kernel, a.data(), b.data(), c.data(), 3, nullptr).ok());
    EXPECT_THAT(c.ToHost(), testing::ElementsAre(11, 22, 33));
  }).join();
}

TEST_F(KernelGpuTest, EqualSpecsShareOneKernel) {
  std::vector<std::shared_ptr<const Kernel>> kernels(8);
  std::vector<std::thread> threads;
  for (auto& kernel : kernels) {
    threads.emplace_back([&kernel] {
      if (auto got = GetKernel(kAdd, 0, 0); got.ok()) kernel = *got;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(kernels[0], nullptr);
  for (const auto& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
}

// The first launch ever of a kernel is inside a strict capture: nothing may be left to load.
TEST_F(KernelGpuTest, TheFirstLaunchMayBeCaptured) {
  KernelSpec spec = kAdd;
  spec.defines.push_back("ONLY_FOR_THE_CAPTURE_TEST");
  auto kernel = GetKernel(spec, 0, 0);
  ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
  constexpr int64_t kSize = 5000;
  DeviceBuffer<float> a(std::vector<float>(kSize, 1)), b(std::vector<float>(kSize, 2)), c(kSize);
  Stream stream;
  Graph graph(stream, [&] {
    const Status status = LaunchAdd(**kernel, a.data(), b.data(), c.data(), kSize, stream.get());
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
  graph.Launch(stream);
  stream.Synchronize();
  EXPECT_EQ(c.ToHost(), std::vector<float>(kSize, 3));
  b.CopyFrom(std::vector<float>(kSize, 5));
  graph.Launch(stream);  // a replay reads what is there now
  stream.Synchronize();
  EXPECT_EQ(c.ToHost(), std::vector<float>(kSize, 6));
  EXPECT_TRUE(c.GuardsIntact());
}

TEST_F(KernelGpuTest, SharedMemoryAboveTheDefaultIsAllowedUpToTheDevicesLimit) {
  const auto most = static_cast<uint32_t>((*GetDeviceInfo(0))->max_shared_memory_per_block);
  auto kernel = GetKernel(kAdd, 0, most);
  ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
  DeviceBuffer<float> a(std::vector<float>{1}), b(std::vector<float>{2}), c(1);
  float *pa = a.data(), *pb = b.data(), *pc = c.data();
  int64_t n = 1;
  void* params[] = {&pa, &pb, &pc, &n};
  LaunchConfig config;
  config.block[0] = 256;
  config.dynamic_shared_bytes = most;
  const Status launched = (*kernel)->Launch(config, params, nullptr);
  EXPECT_TRUE(launched.ok()) << launched.ToString();
  EXPECT_THAT(c.ToHost(), testing::ElementsAre(3));
  EXPECT_THAT(GetKernel(kAdd, 0, most + 1).status().message(), HasSubstr("shared memory"));
}

TEST_F(KernelGpuTest, ErrorsNameTheKernel) {
  auto kernel = GetKernel(kAdd, 0, 0);
  ASSERT_TRUE(kernel.ok());
  LaunchConfig config;
  config.block[0] = 5000;
  void* params[] = {nullptr, nullptr, nullptr, nullptr};
  float* p = nullptr;
  int64_t n = 0;
  params[0] = params[1] = params[2] = &p;
  params[3] = &n;
  EXPECT_THAT((*kernel)->Launch(config, params, nullptr).message(),
              testing::AllOf(HasSubstr("kernel simple_add with grid 1x1x1, block 5000x1x1"),
                             HasSubstr("CUDA_ERROR_INVALID_VALUE")));
  config.grid[0] = 0;
  EXPECT_TRUE((*kernel)->Launch(config, params, nullptr).ok());  // nothing to compute
  KernelSpec missing = kAdd;
  missing.entry = "no_such_kernel";
  EXPECT_THAT(GetKernel(missing, 0, 0).status().message(), HasSubstr("no_such_kernel"));
}

TEST_F(KernelGpuTest, EveryDeviceRunsIt) {
  auto count = DeviceCount();
  for (int i = 0; i < *count; ++i) {
    ScopedPrimaryContext context(**GetDriver(), i);
    auto kernel = GetKernel(kAdd, i, 0);
    ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
    DeviceBuffer<float> a({1, 2}), b({3, 4}), c(2);
    ASSERT_TRUE(LaunchAdd(**kernel, a.data(), b.data(), c.data(), 2, nullptr).ok());
    EXPECT_THAT(c.ToHost(), testing::ElementsAre(4, 6));
  }
}

}  // namespace
}  // namespace xla_gpu::cuda
