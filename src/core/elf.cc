#include "src/core/elf.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

namespace xla_gpu {
namespace {

constexpr uint64_t kMaxNames = 64 << 20;  // no plugin has 64 MB of exported names

struct Source {
  uint64_t size;
  // `size` bytes from `offset`, fewer where the source ends before.
  std::function<std::string(uint64_t offset, size_t size)> read;
};

Source SourceOf(std::string_view bytes) {
  return {bytes.size(), [bytes](uint64_t offset, size_t size) {
            return std::string(bytes.substr(std::min<uint64_t>(offset, bytes.size()), size));
          }};
}

struct Elf {
  Elf64_Ehdr header{};
  std::vector<Elf64_Shdr> sections;
};

bool Inside(uint64_t offset, uint64_t size, uint64_t whole) {
  return offset <= whole && size <= whole - offset;
}

// None for what is no 64-bit little-endian ELF file with a section table.
std::optional<Elf> ReadElf(const Source& source) {
  Elf elf;
  const std::string header = source.read(0, sizeof(elf.header));
  if (header.size() != sizeof(elf.header)) return std::nullopt;
  std::memcpy(&elf.header, header.data(), header.size());
  const std::string_view ident(reinterpret_cast<const char*>(elf.header.e_ident), EI_NIDENT);
  if (!ident.starts_with(ELFMAG) || ident[EI_CLASS] != ELFCLASS64 ||
      ident[EI_DATA] != ELFDATA2LSB || elf.header.e_shentsize != sizeof(Elf64_Shdr)) {
    return std::nullopt;
  }
  const size_t table_size = elf.header.e_shnum * sizeof(Elf64_Shdr);
  if (table_size == 0 || !Inside(elf.header.e_shoff, table_size, source.size)) return std::nullopt;
  const std::string table = source.read(elf.header.e_shoff, table_size);
  if (table.size() != table_size) return std::nullopt;
  elf.sections.resize(elf.header.e_shnum);
  std::memcpy(elf.sections.data(), table.data(), table_size);
  return elf;
}

std::string DynamicNames(const Source& source) {
  const std::optional<Elf> elf = ReadElf(source);
  if (!elf) return "";
  for (const Elf64_Shdr& section : elf->sections) {
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= elf->sections.size()) continue;
    const Elf64_Shdr& names = elf->sections[section.sh_link];
    if (names.sh_size > kMaxNames || !Inside(names.sh_offset, names.sh_size, source.size)) {
      return "";
    }
    return source.read(names.sh_offset, names.sh_size);
  }
  return "";
}

}  // namespace

bool IsWholeElf(std::string_view bytes, int machine) {
  const std::optional<Elf> elf = ReadElf(SourceOf(bytes));
  return elf && elf->header.e_machine == machine &&
         std::ranges::all_of(elf->sections, [&](const Elf64_Shdr& section) {
           return section.sh_type == SHT_NULL || section.sh_type == SHT_NOBITS ||
                  Inside(section.sh_offset, section.sh_size, bytes.size());
         });
}

uint64_t ElfSectionSize(std::string_view bytes, std::string_view name) {
  const std::optional<Elf> elf = ReadElf(SourceOf(bytes));
  if (!elf || elf->header.e_shstrndx >= elf->sections.size()) return 0;
  const Elf64_Shdr& table = elf->sections[elf->header.e_shstrndx];
  if (!Inside(table.sh_offset, table.sh_size, bytes.size())) return 0;
  const std::string_view names = bytes.substr(table.sh_offset, table.sh_size);
  for (const Elf64_Shdr& section : elf->sections) {
    if (section.sh_name >= names.size()) continue;
    const std::string_view rest = names.substr(section.sh_name);
    if (rest.substr(0, rest.find('\0')) == name) return section.sh_size;
  }
  return 0;
}

std::string ElfDynamicNames(const RegularFile& file) {
  return DynamicNames({file.size(), [&file](uint64_t offset, size_t size) {
                         StatusOr<std::string> bytes = file.ReadAt(offset, size);
                         return bytes.ok() ? *std::move(bytes) : std::string();
                       }});
}

std::string ElfDynamicNames(std::string_view bytes) { return DynamicNames(SourceOf(bytes)); }

}  // namespace xla_gpu
