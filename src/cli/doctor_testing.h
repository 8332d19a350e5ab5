// Machines of every kind, for the tests of `xla-gpu doctor`.
#ifndef XLA_GPU_CLI_DOCTOR_TESTING_H_
#define XLA_GPU_CLI_DOCTOR_TESTING_H_

#include <string>

#include "src/cli/doctor_report.h"

namespace xla_gpu::cli {

inline constexpr char kSite[] = "/venv/lib/python3.11/site-packages";

// A machine without a GPU, with nothing of Python.
inline Findings Bare() {
  Findings f;
  f.library_version = "0.1.0";
  f.ops = {"simple_add"};
  f.cuda.driver = Unavailable("libcuda.so.1 cannot be opened; install the driver");
  f.cuda.nvrtc = Unavailable("no NVRTC was found");
  f.cuda.compiler_program = "/bin/xla-gpu-compile";
  f.site_packages = {kSite};
  return f;
}

inline Findings WithPackage(const std::string& name, const std::string& version) {
  Findings f = Bare();
  f.packages = {{name, version, kSite}};
  return f;
}

inline Findings WithGpu(int driver) {
  Findings f = Bare();
  f.cuda.driver = OkStatus();
  f.cuda.driver_version = driver;
  f.cuda.devices = {{.ordinal = 0,
                     .name = "NVIDIA H200",
                     .compute_major = 9,
                     .memory_bytes = int64_t{140} << 30}};
  f.cuda.nvrtcs = {{"/x/libnvrtc.so.13", "13.5", "pip package", "", true}};
  f.cuda.nvrtc = OkStatus();
  return f;
}

inline PluginFinding CudaPlugin(const std::string& package) {
  return {"/s/jax_plugins/xla_cuda_plugin.so", package, "0.11.2", true, "0.115", "0.4",
          {"Gpu_Custom_Call", "FFI"},          true,    true,     ""};
}

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_DOCTOR_TESTING_H_
