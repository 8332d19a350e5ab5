#include "src/core/elf.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

namespace xla_gpu {
namespace {

// A header, sections, and "\0one\0two\0" as the names of the dynamic symbols.
struct Parts {
  Elf64_Ehdr header{};
  Elf64_Shdr sections[3] = {};
  char names[9] = {'\0', 'o', 'n', 'e', '\0', 't', 'w', 'o', '\0'};

  Parts() {
    std::memcpy(header.e_ident, ELFMAG "\2\1\1", 7);
    header.e_machine = EM_CUDA;
    header.e_shoff = offsetof(Parts, sections);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    sections[1].sh_type = SHT_DYNSYM;
    sections[1].sh_link = 2;
    sections[2].sh_type = SHT_STRTAB;
    sections[2].sh_offset = offsetof(Parts, names);
    sections[2].sh_size = sizeof(names);
  }
  std::string Bytes() const {
    return {reinterpret_cast<const char*>(this), offsetof(Parts, names) + 9};
  }
};

TEST(ElfTest, ReadsWhatIsWhole) {
  const Parts parts;
  EXPECT_TRUE(IsWholeElf(parts.Bytes(), EM_CUDA));
  EXPECT_FALSE(IsWholeElf(parts.Bytes(), EM_X86_64));
  EXPECT_EQ(ElfDynamicNames(parts.Bytes()), std::string("\0one\0two\0", 9));
}

TEST(ElfTest, EveryPartThatIsCutOffIsMissed) {
  const std::string bytes = Parts().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(IsWholeElf(bytes.substr(0, size), EM_CUDA)) << size;
    EXPECT_EQ(ElfDynamicNames(bytes.substr(0, size)), "") << size;
  }
}

TEST(ElfTest, NumbersThatPointOutsideAreRefused) {
  const auto refused = [](auto change) {
    Parts parts;
    change(parts);
    return !IsWholeElf(parts.Bytes(), EM_CUDA);
  };
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_shoff = ~uint64_t{0}; }));
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_shoff = ~uint64_t{0} - 64; }));
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_shnum = 0xffff; }));
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_shnum = 0; }));
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_shentsize = 1; }));
  EXPECT_TRUE(refused([](Parts& p) { p.header.e_ident[EI_CLASS] = ELFCLASS32; }));
  EXPECT_TRUE(refused([](Parts& p) { p.sections[2].sh_offset = ~uint64_t{0}; }));
  EXPECT_TRUE(refused([](Parts& p) { p.sections[2].sh_size = ~uint64_t{0}; }));
  Parts link;
  link.sections[1].sh_link = 3;
  EXPECT_EQ(ElfDynamicNames(link.Bytes()), "");
}

TEST(ElfTest, ARealLibrary) {
  const auto file = RegularFile::Open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  EXPECT_NE(ElfDynamicNames(*file).find(std::string("\0getenv\0", 8)), std::string::npos);
}

}  // namespace
}  // namespace xla_gpu
