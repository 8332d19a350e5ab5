// The one wrapping of a process, over the real xla-cpu-pjrt. One test executable is one process, so
// there is one answer to be had here; the others are tests of PyTorch/XLA (tests/torch_xla).
#include "src/xla/compat/compat_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "src/core/op_registry.h"
#include "src/xla/handlers.h"
#include "src/xla/pjrt_discovery.h"
#include "src/xla/registration.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

TEST(CompatPluginTest, OneWrappingForAllThreadsAndDoors) {
  const std::string stock = CpuPluginForTest();
  if (stock.empty()) GTEST_SKIP() << "xla-cpu-pjrt is not installed";
  setenv("XLA_GPU_PJRT_PLUGIN", stock.c_str(), 1);
  EXPECT_EQ(LoadedCompatPlugin(), nullptr);

  std::vector<const PJRT_Api*> apis(8);
  std::vector<std::thread> threads;
  for (const PJRT_Api*& api : apis) threads.emplace_back([&api] { api = CompatApi(); });
  for (std::thread& thread : threads) thread.join();
  for (const PJRT_Api* api : apis) EXPECT_EQ(api, apis[0]);

  const StatusOr<CompatPlugin>& compat = GetCompatPlugin();
  ASSERT_TRUE(compat.ok()) << compat.status().ToString();
  EXPECT_EQ(compat->api, apis[0]);
  EXPECT_EQ(compat->registration_problem, "");
  ASSERT_EQ(LoadedCompatPlugin(), &*compat);

  // Whoever registers a handler, by whichever name of the plugin, reaches the one registry.
  EXPECT_NE(compat->api, compat->wrapped->api());
  EXPECT_EQ(*PjrtPlugin::FromApi(compat->api), compat->wrapped);
  EXPECT_EQ(*PjrtPlugin::FromApi(compat->wrapped->api()), compat->wrapped);
  EXPECT_EQ(*PjrtPlugin::Load(stock), compat->wrapped);
  EXPECT_EQ(*LoadedPlugin(Platform::kHost), compat->wrapped);
  const Op* op = *OpRegistry::Global().Get("simple_add");
  const Registration again{op->target, StagesOf(*HandlerAddress(*op, Platform::kHost, 4)), "Host"};
  EXPECT_TRUE(Register(*compat->wrapped, again).ok());
  const Registration other{op->target,
                           {.execute = *HandlerAddress(
                                **OpRegistry::Global().Get("paged_attention"), Platform::kHost, 4)},
                           "Host"};
  EXPECT_THAT(Register(*compat->wrapped, other).message(), HasSubstr("another typed handler"));
}

TEST(CompatPluginTest, TheShimIsNoStockPlugin) {
  const char* shim = std::getenv("XLA_GPU_PJRT_SHIM");
  if (shim == nullptr) GTEST_SKIP() << "ctest names the library by XLA_GPU_PJRT_SHIM";
  EXPECT_TRUE(IsCompatPlugin(shim));
  EXPECT_FALSE(IsCompatPlugin("/bin/sh"));
  EXPECT_FALSE(IsCompatPlugin("/no/such/file"));
  if (const std::string stock = CpuPluginForTest(); !stock.empty()) {
    EXPECT_FALSE(IsCompatPlugin(stock));
  }
}

}  // namespace
}  // namespace xla_gpu::xla
