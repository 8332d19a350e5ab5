// Any bytes are an ELF file that lies within them, or none; never a fault.
#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "src/core/elf.h"
#include "src/core/elf_testing.h"
#include "src/core/fuzz_seeds.h"

namespace {

// Machine code as NVRTC gives it.
std::string Seed(uint16_t machine) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG "\2\1\1", 7);
  header.e_machine = machine;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_shstrndx = 1;
  Elf64_Shdr sections[2] = {};
  sections[0].sh_type = SHT_NULL;
  sections[0].sh_name = 1;
  sections[1].sh_type = SHT_STRTAB;
  sections[1].sh_offset = sizeof(header) + sizeof(sections);
  sections[1].sh_size = 5;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  return bytes.append("\0one\0", 5);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(*argc, *argv, {Seed(EM_CUDA), xla_gpu::SharedObject({"one", "two"})});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // A file cut short is never whole where the whole one was not, and names lie within the bytes.
  const bool whole = xla_gpu::IsWholeElf(bytes, EM_CUDA);
  if (size > 0 && !whole && xla_gpu::IsWholeElf(bytes.substr(0, size - 1), EM_CUDA)) std::abort();
  const std::string names = xla_gpu::ElfDynamicNames(bytes);
  if (xla_gpu::ElfSectionSize(bytes, "one") == 1 && bytes.find("one") == bytes.npos) std::abort();
  for (size_t at = 0; at < names.size();) {
    const size_t end = names.find('\0', at);
    if (end == names.npos || (end == at && at != 0)) std::abort();  // each between two zeros
    if (bytes.find(std::string_view(names).substr(at, end - at + 1)) == bytes.npos) std::abort();
    at = end + 1;
  }
  return 0;
}
