// Where this library lies on disk, to find what is installed beside it. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_OWN_LOCATION_H_
#define XLA_GPU_CUDA_OWN_LOCATION_H_

#include <string>
#include <vector>

namespace xla_gpu::cuda {

// The folder of the shared library or program that holds this code; empty if unknown.
std::string OwnFolder();

// The site-packages folders that pip packages may lie in, nearest first: the one this library is
// installed in, those of libraries already loaded (jaxlib's, torch's), that of the virtual
// environment whose bin/ holds this program, and that of VIRTUAL_ENV.
std::vector<std::string> SitePackages();

// The paths below `folder`, which is taken as it is, that match a shell pattern; sorted.
std::vector<std::string> Glob(const std::string& folder, const std::string& pattern);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_OWN_LOCATION_H_
