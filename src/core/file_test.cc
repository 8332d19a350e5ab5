#include "src/core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return temp_.path(name); }

  TempFolder temp_;
  const std::string folder_ = temp_.path();
};

TEST_F(FileTest, WhatIsWrittenIsRead) {
  const std::string bytes("a\0b\nc", 5);
  ASSERT_TRUE(WriteFile(Path("f"), "longer than what follows").ok());
  ASSERT_TRUE(WriteFile(Path("f"), bytes).ok());
  EXPECT_EQ(*ReadFile(Path("f"), 5), bytes);
  EXPECT_THAT(ReadFile(Path("f"), 4).status().message(), HasSubstr("has 5 bytes; at most 4"));
  EXPECT_THAT(ReadFile(Path("g"), 4).status().message(), HasSubstr("No such file"));
  const auto file = RegularFile::Open(Path("f"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->ReadAt(3, 100), "\nc");
  EXPECT_EQ(*file->ReadAt(100, 1), "");
}

TEST_F(FileTest, AFileThatTellsNoSizeIsReadToItsEnd) {
  const auto status = ReadFile("/proc/self/status", 1 << 20);
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(*status, HasSubstr("Pid:"));
  EXPECT_FALSE(ReadFile("/proc/self/status", 10).ok());
}

TEST_F(FileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", Path("link"));
  for (const auto& [path, kind] :
       std::vector<std::pair<std::string, std::string>>{{folder_, "a folder"},
                                                        {Path("pipe"), "a pipe"},
                                                        {Path("link"), "a pipe"},
                                                        {"/dev/zero", "a device"}}) {
    EXPECT_THAT(ReadFile(path, 100).status().message(), HasSubstr(path + " is " + kind));
    EXPECT_FALSE(WriteFile(path, "x").ok()) << path;
  }
  EXPECT_TRUE(fs::exists(Path("pipe")));
}

TEST_F(FileTest, ALinkIsNotFollowedWithinAFolder) {
  ASSERT_TRUE(WriteFile(Path("f"), "x").ok());
  fs::create_symlink("f", Path("link"));
  const UniqueFd folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_TRUE(RegularFile::OpenAt(folder.get(), "f").ok());
  EXPECT_FALSE(RegularFile::OpenAt(folder.get(), "link").ok());
}

TEST_F(FileTest, AFullDiskLeavesNoHalfFile) {
  EXPECT_EQ(RunForked([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit small = {1000, 1000};
              setrlimit(RLIMIT_FSIZE, &small);
              const Status status = WriteFile(Path("f"), std::string(5000, 'x'));
              return status.message().find("File too large") != std::string::npos;
            }),
            0);
  EXPECT_FALSE(fs::exists(Path("f")));
}

TEST_F(FileTest, FoldersAndLines) {
  ASSERT_TRUE(WriteFile(Path("b"), "").ok() && WriteFile(Path("a"), "").ok());
  EXPECT_THAT(ListFolder(folder_), ElementsAre(Path("a"), Path("b")));
  EXPECT_THAT(ListFolder(Path("none")), ElementsAre());
  EXPECT_THAT(Lines("a\r\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(Lines(""), ElementsAre());
}

TEST_F(FileTest, OwnersOfLinksAndOfWhatTheyLeadTo) {
  ASSERT_TRUE(WriteFile(Path("f"), "").ok());
  fs::create_symlink("f", Path("link"));
  EXPECT_TRUE(HasTrustedOwner(Path("link")));
  EXPECT_TRUE(HasTrustedOwner("/"));
  EXPECT_FALSE(HasTrustedOwner(Path("none")));
  if (lchown(Path("link").c_str(), geteuid() + 1, getegid()) != 0) return;  // only root can
  EXPECT_FALSE(HasTrustedOwner(Path("link")));
  ASSERT_TRUE(WriteFile(Path("own"), "").ok());
  EXPECT_FALSE(HasTrustedOwner(Path("link"), Path("own")));
  ASSERT_EQ(chown(Path("own").c_str(), geteuid() + 1, getegid()), 0);
  EXPECT_TRUE(HasTrustedOwner(Path("link"), Path("own")));
}

}  // namespace
}  // namespace xla_gpu
