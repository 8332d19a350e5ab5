// The compatibility plugin: a stock PJRT plugin, found and wrapped once, with this library's
// handlers registered in it. libxla_gpu_pjrt.so (main.cc) shows it to frameworks.
#ifndef XLA_GPU_XLA_COMPAT_COMPAT_PLUGIN_H_
#define XLA_GPU_XLA_COMPAT_COMPAT_PLUGIN_H_

#include <string>

#include "src/core/op.h"
#include "src/core/status.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

struct CompatPlugin {
  const PjrtPlugin* wrapped;
  const PJRT_Api* api;  // what frameworks see
  // Why this library's handlers are not in the plugin; empty when they are.
  std::string registration_problem;
};

// Finds (XLA_GPU_PJRT_PLUGIN, else CUDA where there is an NVIDIA GPU, else the CPU), loads and
// wraps the plugin at the first call; every later one, from any thread, gives the same answer.
const StatusOr<CompatPlugin>& GetCompatPlugin();

// The answer of GetCompatPlugin if it was called, else null.
const CompatPlugin* LoadedCompatPlugin();

// The plugin already loaded in this process (by JAX, say) that runs `platform`.
StatusOr<const PjrtPlugin*> LoadedPlugin(Platform platform);

// What GetPjrtApi returns: never null. If there is no plugin to wrap, a table that says why.
const PJRT_Api* CompatApi();

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_COMPAT_COMPAT_PLUGIN_H_
