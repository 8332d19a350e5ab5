#include "src/cuda/kernel_specs.h"

#include <algorithm>

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

Status CheckArch(const std::string& arch) {
  std::string_view digits = arch;
  const bool prefixed = digits.starts_with("sm_");
  if (prefixed) digits.remove_prefix(3);
  if (digits.ends_with('a') || digits.ends_with('f')) digits.remove_suffix(1);
  const bool numbered = digits.size() >= 2 && digits.size() <= 3 &&
                        std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (prefixed && numbered) return OkStatus();
  return InvalidArgument("architecture is '", arch,
                         "'; it must be like sm_80, sm_89, sm_90a, sm_100a or sm_120a");
}

StatusOr<CompiledKernel> CompileKernel(const KernelSpec& spec, const std::string& arch) {
  XLA_GPU_RETURN_IF_ERROR(CheckArch(arch));
  // The kernel must be the one that GetKernel would ask for here, hence the same compiler.
  StatusOr<const DriverApi*> driver = GetDriver();
  XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const KernelImage> image,
                           GetKernelImage(spec, arch, driver.ok() ? (*driver)->version : 0));
  return CompiledKernel{image->cubin.size(), image->log, image->from_disk, image->kept};
}

}  // namespace xla_gpu::cuda
