// What the tests of src/cuda and above share.
#ifndef XLA_GPU_CUDA_TEST_UTIL_H_
#define XLA_GPU_CUDA_TEST_UTIL_H_

#include <elf.h>

#include <string>
#include <string_view>

#include "src/core/test_util.h"
#include "src/cuda/sha256.h"

namespace xla_gpu::cuda {

using ::xla_gpu::ReadWhole;
using ::xla_gpu::RunForked;
using ::xla_gpu::ScopedEnv;
using ::xla_gpu::TempFolder;

inline Sha256::Digest Sha256Of(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

// The smallest file that passes for machine code of a GPU; `name` makes it another.
inline std::string TinyCubin(const std::string& name = "") {
  Elf64_Ehdr header{};
  const std::string ident = ELFMAG "\2\1\1" + name.substr(0, 8);  // 64 bits, little-endian, version
  ident.copy(reinterpret_cast<char*>(header.e_ident), ident.size());
  header.e_machine = EM_CUDA;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 1;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         std::string(sizeof(Elf64_Shdr), '\0');
}

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_TEST_UTIL_H_
