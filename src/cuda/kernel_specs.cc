#include "src/cuda/kernel_specs.h"

#include "src/cuda/driver_api.h"
#include "src/cuda/kernel_image.h"

namespace xla_gpu::cuda {
namespace {

struct Registered {
  const char* op;
  KernelSpecsFn specs;
};

std::vector<Registered>& All() {
  static auto* all = new std::vector<Registered>;
  return *all;
}

}  // namespace

KernelSpecsRegistration::KernelSpecsRegistration(const char* op, KernelSpecsFn specs) {
  All().push_back({op, specs});
}

std::vector<RegisteredSpec> AllKernelSpecs(const DeviceInfo& device) {
  std::vector<RegisteredSpec> found;
  for (const auto& [op, specs] : All()) {
    for (KernelSpec& spec : specs(device)) found.push_back({op, std::move(spec)});
  }
  return found;
}

StatusOr<CompiledKernel> CompileKernel(const KernelSpec& spec, const std::string& arch) {
  // The kernel must be the one that GetKernel would ask for here, hence the same compiler.
  StatusOr<const DriverApi*> driver = GetDriver();
  XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const KernelImage> image,
                           GetKernelImage(spec, arch, driver.ok() ? (*driver)->version : 0));
  return CompiledKernel{image->cubin.size(), image->log, image->from_disk, image->kept};
}

}  // namespace xla_gpu::cuda
