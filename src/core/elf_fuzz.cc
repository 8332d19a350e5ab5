// Any bytes are an ELF file that lies within them, or none; never a fault.
#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "src/core/elf.h"
#include "src/core/fuzz_seeds.h"

namespace {

// Machine code as NVRTC gives it, and a shared object with one name.
std::string Seed(uint16_t machine, uint32_t section_type) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG "\2\1\1", 7);
  header.e_machine = machine;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_shstrndx = 1;
  Elf64_Shdr sections[2] = {};
  sections[0].sh_type = section_type;
  sections[0].sh_link = 1;
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
  xla_gpu::WriteSeedsIfAsked(*argc, *argv, {Seed(EM_CUDA, SHT_NULL), Seed(EM_X86_64, SHT_DYNSYM)});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // A file cut short is never whole where the whole one was not, and names lie within the bytes.
  const bool whole = xla_gpu::IsWholeElf(bytes, EM_CUDA);
  if (size > 0 && !whole && xla_gpu::IsWholeElf(bytes.substr(0, size - 1), EM_CUDA)) std::abort();
  const std::string names = xla_gpu::ElfDynamicNames(bytes);
  if (xla_gpu::ElfSectionSize(bytes, "one") == 1 && bytes.find("one") == bytes.npos) std::abort();
  if (!names.empty() && bytes.find(names) == bytes.npos) std::abort();
  return 0;
}
