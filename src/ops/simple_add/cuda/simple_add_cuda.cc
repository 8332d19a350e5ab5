// simple_add on CUDA: chooses the kernel for the dtype, then launches it.
#include <cstdint>

#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/simple_add/simple_add.h"

namespace xla_gpu {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kBytesPerThread = 16;

cuda::KernelSpec SpecFor(DType dtype) {
  const char* element = dtype == DType::kF32    ? "ELEMENT_F32"
                        : dtype == DType::kBF16 ? "ELEMENT_BF16"
                        : dtype == DType::kF16  ? "ELEMENT_F16"
                                                : "ELEMENT_I32";
  return {"src/ops/simple_add/cuda/simple_add.cu", "simple_add", {element}};
}

// One source for all architectures.
std::vector<cuda::KernelSpec> KnownSpecs(const cuda::DeviceInfo& device) {
  return {SpecFor(DType::kF32), SpecFor(DType::kBF16), SpecFor(DType::kF16), SpecFor(DType::kI32)};
}

XLA_GPU_REGISTER_KERNEL_SPECS("simple_add", KnownSpecs);

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeSimpleAddCudaPlan(const Call& call, int device_ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto kernel,
                           cuda::GetKernel(SpecFor(call.results[0].dtype), device_ordinal,
                                           /*max_dynamic_shared_bytes=*/0));
  return MakePlan([kernel](const Call& call, const ExecutionContext& context) {
    void* a = call.args[0].data;
    void* b = call.args[1].data;
    void* c = call.results[0].data;
    int64_t n = call.results[0].num_elements();
    const int64_t per_block = kThreads * kBytesPerThread / DTypeSize(call.results[0].dtype);
    cuda::LaunchConfig config;
    config.grid[0] = static_cast<uint32_t>((n + per_block - 1) / per_block);
    config.block[0] = kThreads;
    void* params[] = {&a, &b, &c, &n};
    return kernel->Launch(config, params, context.stream);
  });
}

}  // namespace xla_gpu
