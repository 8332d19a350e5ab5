// Where Python packages lie on this machine, found without Python: wheels bring PJRT plugins, NVRTC
// and this library's own programs.
#ifndef XLA_GPU_CORE_PYTHON_FOLDERS_H_
#define XLA_GPU_CORE_PYTHON_FOLDERS_H_

#include <string>
#include <vector>

namespace xla_gpu {

// The folder of the shared library or program that holds this code; empty if unknown.
std::string OwnFolder();

// Folders in which Python packages lie, in this order: that of this library, those of the modules
// loaded in this process (jaxlib's, torch's), VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH.
std::vector<std::string> SitePackages();
// sys.path of `python3`: where to look if none of SitePackages() holds what is sought.
std::vector<std::string> PythonSysPath();

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_PYTHON_FOLDERS_H_
