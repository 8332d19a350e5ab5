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

std::vector<RegisteredSpec> AllKernelSpecs(const std::string& arch) {
  std::vector<RegisteredSpec> found;
  for (const auto& [op, specs] : All()) {
    for (KernelSpec& spec : specs(arch)) found.push_back({op, std::move(spec)});
  }
  return found;
}

const std::vector<std::string>& KnownArchs() {
  static const auto* archs =
      new std::vector<std::string>{"sm_80",   "sm_86",   "sm_87",   "sm_89",   "sm_90a",
                                   "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"};
  return *archs;
}

StatusOr<CompiledKernel> CompileKernel(const KernelSpec& spec, const std::string& arch) {
  // The kernel must be the one that GetKernel would ask for here, hence the same compiler.
  StatusOr<const DriverApi*> driver = GetDriver();
  XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const KernelImage> image,
                           GetKernelImage(spec, arch, driver.ok() ? (*driver)->version : 0));
  return CompiledKernel{image->cubin.size(), image->log, image->from_disk, image->kept};
}

}  // namespace xla_gpu::cuda
