#include "src/core/elf.h"

#include <elf.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

namespace xla_gpu {
namespace {

constexpr uint64_t kMaxNames = 64 << 20;  // no plugin has tables or names of 64 MB

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

// Nothing where the source does not have as many.
template <typename T>
std::optional<std::vector<T>> ReadTable(const Source& source, uint64_t offset, uint64_t count) {
  if (count > kMaxNames / sizeof(T) || !Inside(offset, count * sizeof(T), source.size)) {
    return std::nullopt;
  }
  std::vector<T> table(count);
  const std::string bytes = source.read(offset, count * sizeof(T));
  if (bytes.size() != count * sizeof(T)) return std::nullopt;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(table.data()));
  return table;
}

// None for what is no 64-bit little-endian ELF file.
std::optional<Elf64_Ehdr> ReadHeader(const Source& source) {
  const auto headers = ReadTable<Elf64_Ehdr>(source, 0, 1);
  if (!headers) return std::nullopt;
  const Elf64_Ehdr& header = headers->front();
  const std::string_view ident(reinterpret_cast<const char*>(header.e_ident), EI_NIDENT);
  if (!ident.starts_with(ELFMAG) || ident[EI_CLASS] != ELFCLASS64 ||
      ident[EI_DATA] != ELFDATA2LSB) {
    return std::nullopt;
  }
  return header;
}

// None for what is no such file with a section table.
std::optional<Elf> ReadElf(const Source& source) {
  const auto header = ReadHeader(source);
  if (!header || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum == 0) {
    return std::nullopt;
  }
  auto sections = ReadTable<Elf64_Shdr>(source, header->e_shoff, header->e_shnum);
  if (!sections) return std::nullopt;
  return Elf{*header, *std::move(sections)};
}

// A shared object as the loader reads it, which looks at no section: strip may have taken them.
class Segments {
 public:
  explicit Segments(const Source& source) : source_(source) {
    const auto header = ReadHeader(source);
    if (!header || header->e_phentsize != sizeof(Elf64_Phdr)) return;
    auto segments = ReadTable<Elf64_Phdr>(source, header->e_phoff, header->e_phnum);
    if (segments) segments_ = *std::move(segments);
    const auto dynamic = std::ranges::find(segments_, Elf64_Word{PT_DYNAMIC}, &Elf64_Phdr::p_type);
    if (dynamic == segments_.end()) return;
    auto entries =
        ReadTable<Elf64_Dyn>(source, dynamic->p_offset, dynamic->p_filesz / sizeof(Elf64_Dyn));
    if (entries) dynamic_ = *std::move(entries);
  }

  std::string SymbolNames() const {
    const auto size = Entry(DT_STRSZ);
    const auto strings = size ? At<char>(DT_STRTAB, 0, *size) : std::nullopt;
    const auto symbols = strings ? At<Elf64_Sym>(DT_SYMTAB, 0, NumSymbols()) : std::nullopt;
    if (!symbols) return "";
    const std::string_view table(strings->data(), strings->size());
    std::string names;
    for (const Elf64_Sym& symbol : *symbols) {
      if (symbol.st_name >= table.size() || table[symbol.st_name] == '\0') continue;
      const std::string_view rest = table.substr(symbol.st_name);
      const size_t end = rest.find('\0');
      if (end == rest.npos) continue;
      if (names.empty()) names += '\0';
      names.append(rest.substr(0, end + 1));
      if (names.size() > kMaxNames) return "";  // names may be each other's ends
    }
    return names;
  }

 private:
  std::optional<uint64_t> Entry(int64_t tag) const {
    for (const Elf64_Dyn& entry : dynamic_) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == tag) return entry.d_un.d_val;
    }
    return std::nullopt;
  }

  // `count` elements from `skip` bytes behind the address that the entry has.
  template <typename T>
  std::optional<std::vector<T>> At(int64_t tag, uint64_t skip, uint64_t count) const {
    const auto address = Entry(tag);
    if (!address) return std::nullopt;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || *address < segment.p_vaddr ||
          *address - segment.p_vaddr >= segment.p_filesz ||
          !Inside(segment.p_offset, segment.p_filesz, source_.size)) {
        continue;
      }
      const uint64_t at = *address - segment.p_vaddr;
      if (skip > segment.p_filesz - at) return std::nullopt;
      return ReadTable<T>(source_, segment.p_offset + at + skip, count);
    }
    return std::nullopt;
  }

  // Nothing but the hash tables tells it.
  uint64_t NumSymbols() const {
    if (const auto table = At<uint32_t>(DT_HASH, 0, 2)) return (*table)[1];
    const auto head = At<uint32_t>(DT_GNU_HASH, 0, 4);  // buckets, first symbol, bloom's words
    if (!head) return 0;
    const uint64_t first = (*head)[1], buckets_at = 16 + 8 * uint64_t{(*head)[2]};
    const auto buckets = At<uint32_t>(DT_GNU_HASH, buckets_at, (*head)[0]);
    if (!buckets || buckets->empty()) return 0;
    uint64_t last = std::ranges::max(*buckets);  // the first of the last chain
    if (last < first) return first;              // those in front of the table are not hashed
    const uint64_t chains_at = buckets_at + 4 * buckets->size();
    for (; last < kMaxNames / sizeof(Elf64_Sym); ++last) {
      const auto link = At<uint32_t>(DT_GNU_HASH, chains_at + 4 * (last - first), 1);
      if (!link) return 0;
      if (link->front() % 2 == 1) return last + 1;
    }
    return 0;
  }

  const Source& source_;
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Dyn> dynamic_;
};

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
  const Source source = {file.size(), [&file](uint64_t offset, size_t size) {
                           StatusOr<std::string> bytes = file.ReadAt(offset, size);
                           return bytes.ok() ? *std::move(bytes) : std::string();
                         }};
  return Segments(source).SymbolNames();
}

std::string ElfDynamicNames(std::string_view bytes) {
  const Source source = SourceOf(bytes);
  return Segments(source).SymbolNames();
}

}  // namespace xla_gpu
