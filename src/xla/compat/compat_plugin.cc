#include "src/xla/compat/compat_plugin.h"

#include <atomic>
#include <exception>
#include <vector>

#include "pjrt_c_api.h"
#include "src/core/file.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/xla/compat/api_table.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_discovery.h"

namespace xla_gpu::xla {
namespace {

std::atomic<const CompatPlugin*> loaded{nullptr};

StatusOr<CompatPlugin> Wrap() {
  XLA_GPU_ASSIGN_OR_RETURN(const FoundPlugin found, ChoosePjrtPlugin(""));
  if (IsCompatPlugin(found.path)) {
    return InvalidArgument("XLA_GPU_PJRT_PLUGIN is '", found.path,
                           "', the compatibility plugin itself; it must name the stock "
                           "plugin to be wrapped, as a path, \"cuda\" or \"cpu\"");
  }
  XLA_GPU_ASSIGN_OR_RETURN(const PjrtPlugin* wrapped, PjrtPlugin::Load(found.path));
  if (!wrapped->is_gpu() && Env("XLA_GPU_PJRT_PLUGIN").empty()) {
    LogWarning(StrCat(MachineHasNvidiaGpu()
                          ? "there is an NVIDIA GPU but no CUDA plugin (pip install "
                            "jax-cuda13-pjrt or jax-cuda12-pjrt)"
                          : "there is no NVIDIA GPU",
                      ": the device XLA_GPU is the CPU, by ", wrapped->path(),
                      " (XLA_GPU_PJRT_PLUGIN=cpu says that this is meant)"));
  }
  CompatPlugin compat{wrapped, MakeForwardingApi(wrapped->api()), ""};
  PjrtPlugin::AddForwarder(compat.api, wrapped);
  // Without our ops the framework still has its device.
  if (const Status status = RegisterAllOps(*wrapped); !status.ok()) {
    compat.registration_problem = status.message();
    LogWarning(StrCat("the ops of this library cannot be called here: ", status.message()));
  }
  return compat;
}

// Nothing may be thrown into the framework that calls GetPjrtApi.
StatusOr<CompatPlugin> WrapOrSayWhyNot() {
  try {
    return Wrap();
  } catch (const std::exception& e) {
    return Internal(e.what());
  }
}

}  // namespace

const StatusOr<CompatPlugin>& GetCompatPlugin() {
  static const auto* compat = [] {
    auto* result = new StatusOr<CompatPlugin>(WrapOrSayWhyNot());
    if (result->ok()) loaded.store(&**result);
    return result;
  }();
  return *compat;
}

const CompatPlugin* LoadedCompatPlugin() { return loaded.load(); }

StatusOr<const PjrtPlugin*> LoadedPlugin(Platform platform) {
  // PyTorch/XLA runs in the plugin that the compatibility plugin wraps; another may be loaded too.
  const CompatPlugin* compat = LoadedCompatPlugin();
  if (compat != nullptr && compat->wrapped->is_gpu() == (platform == Platform::kCuda)) {
    return compat->wrapped;
  }
  std::vector<std::string> seen;
  for (const FoundPlugin& found : FindPjrtPlugins()) {
    if (!found.loaded) continue;
    XLA_GPU_ASSIGN_OR_RETURN(const PjrtPlugin* plugin, PjrtPlugin::Load(found.path));
    if (plugin->is_gpu() == (platform == Platform::kCuda)) return plugin;
    seen.push_back(found.path);
  }
  return NotFound(
      "no PJRT plugin for platform ", PlatformName(platform),
      " is loaded in this process (loaded: ", seen.empty() ? "none" : StrJoin(seen, ", "),
      "); give a PJRT_Api or the path of a plugin, or register through jax.ffi "
      "for JAX's own CPU runtime, which is no plugin");
}

const PJRT_Api* CompatApi() {
  static const PJRT_Api* api = [] {
    const StatusOr<CompatPlugin>& compat = GetCompatPlugin();
    if (compat.ok()) return compat->api;
    return MakeFailingApi(compat.status().After("xla_gpu: "));
  }();
  return api;
}

}  // namespace xla_gpu::xla
