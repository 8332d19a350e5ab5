// The kernels that ops are known to use, so that `xla-gpu cache warm` can compile them ahead of
// time and a test can check that each compiles, both without a GPU.
#ifndef XLA_GPU_CUDA_KERNEL_SPECS_H_
#define XLA_GPU_CUDA_KERNEL_SPECS_H_

#include <string>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"

namespace xla_gpu::cuda {

// The common specs of one op on such a device; may be empty.
using KernelSpecsFn = std::vector<KernelSpec> (*)(const DeviceInfo& device);

struct KernelSpecsRegistration {
  KernelSpecsRegistration(const char* op, KernelSpecsFn specs);
};

struct RegisteredSpec {
  std::string op;
  KernelSpec spec;
};

// Those of every op, in the order of registration.
std::vector<RegisteredSpec> AllKernelSpecs(const DeviceInfo& device);

struct CompiledKernel {
  size_t cubin_bytes = 0;
  std::string log;         // the compiler's warnings; empty when it came from disk
  bool from_disk = false;  // it was in the disk cache already
  Status kept;             // why it is not in the disk cache now
};

// Brings the kernel into the disk cache. Needs NVRTC but no GPU.
StatusOr<CompiledKernel> CompileKernel(const KernelSpec& spec, const std::string& arch);

}  // namespace xla_gpu::cuda

// At namespace scope in the op's CUDA file: XLA_GPU_REGISTER_KERNEL_SPECS("simple_add", Specs);
#define XLA_GPU_REGISTER_KERNEL_SPECS(op, specs) \
  static const ::xla_gpu::cuda::KernelSpecsRegistration kernel_specs_registration(op, specs)

#endif  // XLA_GPU_CUDA_KERNEL_SPECS_H_
