// The Python packages that matter to XLA, read from disk: no Python is run and nothing is imported.
#ifndef XLA_GPU_CLI_PYTHON_PACKAGES_H_
#define XLA_GPU_CLI_PYTHON_PACKAGES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xla_gpu::cli {

struct PythonPackage {
  std::string name;     // normalised: "jax-cuda13-pjrt"
  std::string version;  // "0.11.2"
  std::string folder;   // the site-packages folder that holds it
};

// The packages of `site_packages` that XLA, JAX, PyTorch or our CUDA layer have to do with, in the
// order of the folders, then by name. Folders that cannot be read hold none.
std::vector<PythonPackage> FindPythonPackages(const std::vector<std::string>& site_packages);

// -1, 0, 1 as `a` is older than, equal to, newer than `b`: the dotted numbers that both begin with,
// "0.10.2" > "0.9". What follows the numbers ("+cu130", "rc1", ".dev3") does not count.
int CompareVersions(std::string_view a, std::string_view b);

// The FFI version of the headers that jaxlib ships ("0.1"), which is that of the runtime in it;
// none if this jaxlib has no headers.
std::optional<std::string> FfiVersionOfJaxlib(const std::string& site_packages);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PYTHON_PACKAGES_H_
