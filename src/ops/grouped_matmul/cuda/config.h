// Which kernel solves a grouped_matmul problem. Host code that needs no GPU.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONFIG_H_
#define XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONFIG_H_

#include <optional>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/tensor_map.h"
#include "src/ops/grouped_matmul/cuda/params.cuh"
#include "src/ops/grouped_matmul/grouped_matmul.h"

namespace xla_gpu::grouped_matmul {

struct Config {
  struct Boxes {  // of the tensor copy engine
    cuda::TensorMapSpec lhs;
    cuda::TensorMapSpec rhs;
  };
  cuda::KernelSpec kernel;
  cuda::LaunchConfig launch;
  std::optional<Boxes> boxes = {};  // of Hopper's kernel
};

// By the types and sizes alone: how the rows are spread over groups is not known. `aligned`: lhs
// and rhs start at multiples of 16 bytes, else of their element size.
Config ChooseConfig(const Problem& problem, const cuda::DeviceInfo& device, bool aligned = true);

// All but where a call's tensors lie.
Params PlanParams(const Problem& problem);

// Each kind of kernel once, for `xla-gpu cache warm` and for a test that compiles them all.
std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device);

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CUDA_CONFIG_H_
