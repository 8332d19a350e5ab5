#include "src/cuda/device.h"

#include <gtest/gtest.h>

#include <set>

namespace xla_gpu::cuda {
namespace {

TEST(KnownDevices, AreSupportedAndOneOfEachArchitecture) {
  std::set<std::string> archs;
  for (const DeviceInfo& device : KnownDevices()) {
    EXPECT_TRUE(archs.insert(device.Arch()).second) << device.name;
    EXPECT_TRUE(CheckComputeCapability("an op", device).ok()) << device.name;
    EXPECT_GE(device.max_shared_memory_per_block, 99 * 1024) << device.name;
    EXPECT_GT(device.num_sms, 0) << device.name;
  }
}

}  // namespace
}  // namespace xla_gpu::cuda
