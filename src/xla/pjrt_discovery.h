// Finding the PJRT plugins of this machine's Python environments, without Python.
#ifndef XLA_GPU_XLA_PJRT_DISCOVERY_H_
#define XLA_GPU_XLA_PJRT_DISCOVERY_H_

#include <string>
#include <vector>

#include "src/core/python_folders.h"
#include "src/core/status.h"

namespace xla_gpu::xla {

struct FoundPlugin {
  std::string path;     // of the .so
  std::string package;  // the distribution it came from: "jax-cuda13-pjrt"; empty if unknown
  std::string version;  // of the distribution
  bool loaded = false;  // already in this process (JAX brought it)
  // Why it is known to be of no use, or empty. Such a plugin is listed, never chosen.
  std::string unusable;
  bool is_cuda() const;  // by its path: a guess that needs no loading
};

using ::xla_gpu::PythonSysPath;
using ::xla_gpu::SitePackages;

// Every plugin, each file once: XLA_GPU_PJRT_PLUGIN (a path), those already loaded in this process,
// then in each of `folders` jax_plugins/*, xla_plugins/* and what the entry points of group
// `jax_plugins` name. Without `folders`: SitePackages(), then PythonSysPath().
std::vector<FoundPlugin> FindPjrtPlugins();
std::vector<FoundPlugin> FindPjrtPlugins(const std::vector<std::string>& folders);

// The plugin that `name` means: a path to a .so, or "cpu", "cuda", "cuda12", "cuda13" (the first
// found that fits), or "" for the best: CUDA if this machine has an NVIDIA GPU, else CPU.
StatusOr<FoundPlugin> ChoosePjrtPlugin(const std::string& name);

// True if the file is libxla_gpu_pjrt.so (compat/), by whatever name: it forwards to one of the
// plugins found here and is none itself.
bool IsCompatPlugin(const std::string& path);

// True if the machine shows an NVIDIA GPU to this process (its driver's device files exist).
bool MachineHasNvidiaGpu();

// Loads the CUDA libraries of the nvidia-* wheels beside the plugin (as importing JAX does), so
// that the plugin finds them by name. Does nothing for other plugins and where there are none.
void PreloadNvidiaLibraries(const std::string& plugin_path);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_DISCOVERY_H_
