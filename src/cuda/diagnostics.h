// What `xla-gpu doctor` tells of the CUDA side of this machine. Nothing here fails: what is missing
// is said in the structs.
#ifndef XLA_GPU_CUDA_DIAGNOSTICS_H_
#define XLA_GPU_CUDA_DIAGNOSTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/device.h"

namespace xla_gpu::cuda {

struct NvrtcDiagnosis {
  std::string path;
  std::string version;  // "13.5"
  std::string origin;   // "pip package", "CUDA toolkit", "CUDA_HOME", ...
  std::string problem;  // why it cannot be used; empty if it can
  bool chosen = false;  // at most one is
};

struct CacheDiagnosis {
  std::string folder;  // empty: the disk cache is switched off (XLA_GPU_CACHE_DIR is empty)
  Status status;       // why it is not used; OK if it is
  int64_t num_kernels = 0;
  int64_t bytes = 0;
};

struct Diagnostics {
  Status driver;           // why there is no driver, or OK
  int driver_version = 0;  // 13000: it runs programs of CUDA 13.0 and older; 0 without a driver
  Status devices_status;   // why `devices` is not complete, or OK
  std::vector<DeviceInfo> devices;

  std::vector<NvrtcDiagnosis> nvrtcs;  // all that were found, newest first
  Status nvrtc;                        // why none is usable, or OK

  std::string compiler_program;  // path of xla-gpu-compile
  Status compiler;               // why it was not found, or OK

  CacheDiagnosis cache;

  // Kernels can be compiled (from the cache or anew) and run here.
  bool ok() const {
    return driver.ok() && devices_status.ok() && !devices.empty() && nvrtc.ok() && compiler.ok();
  }
};

Diagnostics Diagnose();

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_DIAGNOSTICS_H_
