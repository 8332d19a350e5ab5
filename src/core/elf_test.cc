#include "src/core/elf.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "src/core/child_process.h"
#include "src/core/elf_testing.h"
#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

// A header, sections, and "\0one\0two\0" as what one of them has.
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
  EXPECT_EQ(ElfDynamicNames(parts.Bytes()), "");
  EXPECT_EQ(ElfDynamicNames(SharedObject({"one", "two"})), std::string("\0one\0two\0", 9));
}

TEST(ElfTest, DynamicNamesAreThoseOfTheSymbols) {
  // "two" is the end of "one_two"; "libm.so" is a string of the table and no symbol.
  const std::string strings("\0libm.so\0one_two\0", 17);
  EXPECT_EQ(ElfDynamicNames(SharedObjectOf({9, 13, 0}, strings)),
            std::string("\0one_two\0two\0", 13));
  EXPECT_EQ(ElfDynamicNames(SharedObjectOf({17, 1000}, strings)), "");
  EXPECT_EQ(ElfDynamicNames(SharedObjectOf({9}, strings.substr(0, 16))), "");
  EXPECT_EQ(ElfDynamicNames(SharedObjectOf({}, strings)), "");
}

TEST(ElfTest, EveryPartThatIsCutOffIsMissed) {
  const std::string bytes = Parts().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(IsWholeElf(bytes.substr(0, size), EM_CUDA)) << size;
  }
  const std::string library = SharedObject({"one", "two"});
  for (size_t size = 0; size < library.size(); ++size) {
    EXPECT_EQ(ElfDynamicNames(library.substr(0, size)), "") << size;
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
}

TEST(ElfTest, ARealLibrary) {
  const auto file = RegularFile::Open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  const std::string names = ElfDynamicNames(*file);
  EXPECT_NE(names.find(std::string("\0getenv\0", 8)), std::string::npos);
  EXPECT_EQ(names.find(".so"), std::string::npos);  // libraries that it needs are no symbols
}

// Whatever hash table the linker makes, with the sections that name the tables or without.
TEST(ElfTest, LibrariesOfEachForm) {
  const TempFolder folder;
  folder.Write("a.c",
               "int other(void); int one_two(void) { return other(); } int two(void) {"
               " return 2; }");
  for (const std::string style : {"sysv", "gnu", "both"}) {
    const std::string path = folder.path(style + ".so");
    const auto made = RunChild({"cc", "-shared", "-fPIC", "-O2", "-Wl,--hash-style=" + style, "-o",
                                path, folder.path("a.c")},
                               "", std::chrono::seconds(60));
    ASSERT_TRUE(made.ok() && made->exit_code == 0);
    std::string bytes = ReadWhole(path);
    for (const bool stripped : {false, true}) {
      if (stripped) {
        Elf64_Ehdr header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        bytes.resize(header.e_shoff);
        header.e_shoff = header.e_shnum = header.e_shstrndx = 0;
        std::memcpy(bytes.data(), &header, sizeof(header));
      }
      const std::string names = ElfDynamicNames(bytes);
      for (const std::string name : {"one_two", "two", "other"}) {
        EXPECT_NE(names.find(std::string(1, '\0') + name + '\0'), std::string::npos)
            << name << ' ' << style << ' ' << stripped;
      }
      EXPECT_EQ(names.find("libc.so"), std::string::npos) << style << ' ' << stripped;
    }
  }
}

}  // namespace
}  // namespace xla_gpu
