// Small shared objects for tests: as much of them as a loader looks at for the names of symbols.
#ifndef XLA_GPU_CORE_ELF_TESTING_H_
#define XLA_GPU_CORE_ELF_TESTING_H_

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace xla_gpu {

// Without sections. `symbols`: where in `strings` the names begin.
inline std::string SharedObjectOf(const std::vector<uint32_t>& symbols,
                                  const std::string& strings) {
  struct {
    Elf64_Ehdr header{};
    Elf64_Phdr segments[2] = {};
    Elf64_Dyn dynamic[5] = {};
    uint32_t hash[2] = {};
  } head;
  std::vector<Elf64_Sym> table(1);
  for (const uint32_t name : symbols) table.push_back({.st_name = name});
  constexpr uint64_t kBase = 0x1000;  // an address is no place in the file
  constexpr uint64_t kDynamic = offsetof(decltype(head), dynamic);
  const uint64_t table_size = table.size() * sizeof(Elf64_Sym);
  const uint64_t size = sizeof(head) + table_size + strings.size();
  std::memcpy(head.header.e_ident, ELFMAG "\2\1\1", 7);
  head.header.e_machine = EM_X86_64;
  head.header.e_phoff = offsetof(decltype(head), segments);
  head.header.e_phentsize = sizeof(Elf64_Phdr);
  head.header.e_phnum = 2;
  head.segments[0] = {.p_type = PT_LOAD, .p_vaddr = kBase, .p_filesz = size};
  head.segments[1] = {.p_type = PT_DYNAMIC, .p_offset = kDynamic, .p_filesz = sizeof(head.dynamic)};
  const std::pair<int64_t, uint64_t> entries[] = {{DT_HASH, kBase + offsetof(decltype(head), hash)},
                                                  {DT_SYMTAB, kBase + sizeof(head)},
                                                  {DT_STRTAB, kBase + sizeof(head) + table_size},
                                                  {DT_STRSZ, strings.size()}};
  for (size_t i = 0; i < 4; ++i) {
    head.dynamic[i].d_tag = entries[i].first;
    head.dynamic[i].d_un.d_val = entries[i].second;
  }
  head.hash[1] = static_cast<uint32_t>(table.size());
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.append(reinterpret_cast<const char*>(table.data()), table_size);
  return bytes + strings;
}

inline std::string SharedObject(const std::vector<std::string>& names) {
  std::string strings(1, '\0');
  std::vector<uint32_t> symbols;
  for (const std::string& name : names) {
    symbols.push_back(static_cast<uint32_t>(strings.size()));
    strings += name + '\0';
  }
  return SharedObjectOf(symbols, strings);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_ELF_TESTING_H_
