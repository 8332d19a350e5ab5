// NVRTC, the CUDA compiler as a library: finding it, and using it. Internal to src/cuda.
//
// The process that runs kernels only finds it; the helper program xla-gpu-compile opens and calls
// it, because NVRTC can crash (13.0 does, on valid input).
#ifndef XLA_GPU_CUDA_NVRTC_H_
#define XLA_GPU_CUDA_NVRTC_H_

#include <string>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cuda {

struct NvrtcLibrary {
  std::string path;      // libnvrtc.so.*
  std::string builtins;  // its libnvrtc-builtins.so.X.Y, which must lie beside it
  int major = 0;         // read from the file names, so that finding opens nothing
  int minor = 0;
  std::string origin;   // "CUDA toolkit", "pip package", ...: for people
  std::string problem;  // why it cannot be used; empty if it can, as far as is known

  // "13.5", and what tells apart two builds of one version.
  std::string Version() const;
  std::string Identity() const;
  // Where the headers of its toolkit are (cuda_fp16.h, cuda_bf16.h), in a toolkit or in pip's
  // packages; none where they are not installed.
  std::vector<std::string> IncludeFolders() const;
};

// Every NVRTC on this machine, newest first, unusable ones included. XLA_GPU_NVRTC (files or
// folders, colon-separated) replaces the search.
std::vector<NvrtcLibrary> FindNvrtcs();

// The NVRTC to use: the newest whose code the driver runs (`driver_version` as cuDriverGetVersion
// tells it; 0: no driver, any NVRTC). The error names what was looked for and where.
StatusOr<NvrtcLibrary> SelectNvrtc(int driver_version);

// Takes a library out of SelectNvrtc's choice for the rest of this process: it did not load.
void MarkNvrtcUnusable(const std::string& path, const std::string& problem);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_NVRTC_H_
