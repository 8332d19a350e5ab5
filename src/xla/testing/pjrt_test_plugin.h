// The real xla-cpu-pjrt plugin for tests.
#ifndef XLA_GPU_XLA_TESTING_PJRT_TEST_PLUGIN_H_
#define XLA_GPU_XLA_TESTING_PJRT_TEST_PLUGIN_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "src/xla/pjrt_discovery.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

// The path of xla_cpu_pjrt.so: below XLA_GPU_TEST_SITE_PACKAGES, else where the build's headers
// came from (CMake tells), else wherever `xla-gpu` finds it; empty if there is none.
inline std::string CpuPluginForTest() {
  for (const char* variable : {"XLA_GPU_TEST_SITE_PACKAGES", "XLA_GPU_BUILD_SITE_PACKAGES"}) {
    const char* folder = std::getenv(variable);
    if (folder == nullptr) continue;
    const std::filesystem::path path =
        std::filesystem::path(folder) / "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
    if (std::filesystem::exists(path)) return path.string();
  }
  const auto found = ChoosePjrtPlugin("cpu");
  return found.ok() ? found->path : "";
}

}  // namespace xla_gpu::xla

// Declares `plugin`, loaded; skips the test, with the reason, where xla-cpu-pjrt is not installed.
#define XLA_GPU_REQUIRE_CPU_PLUGIN(plugin)                                              \
  const std::string plugin##_path = ::xla_gpu::xla::CpuPluginForTest();                 \
  if (plugin##_path.empty()) {                                                          \
    GTEST_SKIP() << "xla-cpu-pjrt is not installed; set XLA_GPU_TEST_SITE_PACKAGES to " \
                    "the site-packages that holds it";                                  \
  }                                                                                     \
  auto plugin##_loaded = ::xla_gpu::xla::PjrtPlugin::Load(plugin##_path);               \
  ASSERT_TRUE(plugin##_loaded.ok()) << plugin##_loaded.status().ToString();             \
  const ::xla_gpu::xla::PjrtPlugin* plugin = *plugin##_loaded

#endif  // XLA_GPU_XLA_TESTING_PJRT_TEST_PLUGIN_H_
