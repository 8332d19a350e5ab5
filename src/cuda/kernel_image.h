// From a KernelSpec to machine code for one architecture. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_KERNEL_IMAGE_H_
#define XLA_GPU_CUDA_KERNEL_IMAGE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/compiler.h"
#include "src/cuda/kernel.h"
#include "src/cuda/sha256.h"

namespace xla_gpu::cuda {

struct KernelImage {
  Sha256::Digest key;
  std::string cubin;
  // Of a kernel asked for by a name expression, its name in the machine code; else empty: one image
  // serves all kernels of a source.
  std::string entry;
  std::string log;  // the compiler's warnings; empty when it came from disk
  bool from_disk = false;
  Status kept;  // why it is not on disk, where that was to be
};

// "src/ops/simple_add/cuda/simple_add.cu:simple_add [T=float] for sm_90a".
std::string Describe(const KernelSpec& spec, const std::string& arch);

// The embedded source and all embedded sources it includes, directly or not; the source first.
StatusOr<std::vector<std::pair<std::string, std::string>>> CollectSources(const std::string& path);

// From memory, else from disk, else compiled, by one thread of one process while others wait for
// it. Needs no GPU: `driver_version` only rules out compilers whose code the driver does not run
// (0: no driver).
StatusOr<std::shared_ptr<const KernelImage>> GetKernelImage(const KernelSpec& spec,
                                                            const std::string& arch,
                                                            int driver_version);

// Compiled by the same road, but past memory and disk, with its PTX and with what ptxas tells of
// registers and memory in the log. A text's `entry` may be empty: then all its kernels are in it.
StatusOr<CompileResult> CompileAnew(const KernelSpec& spec, const std::string& arch,
                                    int driver_version);

// Removes an image that the driver refuses from memory and disk: the next one who asks for it has
// it compiled.
void ForgetKernelImage(const KernelImage& image);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_KERNEL_IMAGE_H_
