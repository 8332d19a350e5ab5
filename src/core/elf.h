// The little that is read of ELF files here: whether machine code is whole, its sections, and what
// a shared object exports. Any bytes may come.
#ifndef XLA_GPU_CORE_ELF_H_
#define XLA_GPU_CORE_ELF_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/file.h"

namespace xla_gpu {

// True for a 64-bit ELF file for this machine (EM_CUDA, EM_X86_64, ...) that has sections, none of
// which lies outside the file.
bool IsWholeElf(std::string_view bytes, int machine);

// The size of the section of this name; 0 where there is none.
uint64_t ElfSectionSize(std::string_view bytes, std::string_view name);

// The names of a shared object's dynamic symbols, each between two zeros; empty if it is none.
// Those of the symbols, not the strings that they lie among: these are libraries' and versions'
// names too, and a name may be the end of another's. Reads its headers only: a plugin may have
// 300 MB, and loading one to look is what this avoids.
std::string ElfDynamicNames(const RegularFile& file);
std::string ElfDynamicNames(std::string_view bytes);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_ELF_H_
