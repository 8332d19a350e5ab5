// xla-gpu new-kernel: what it writes and what it refuses. tests/jax/test_new_kernel.py runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/cli/program_testing.h"
#include "src/core/test_util.h"
#include "src/ops/user_kernel/signature.h"

namespace xla_gpu::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(NewKernelTest, WritesThreeFilesOnce) {
  const TempFolder folder;
  const Output output = Program({"new-kernel", "my_norm", "--folder", folder.path("a/b")});
  EXPECT_EQ(output.code, 0) << output.err;
  for (const char* file : {"my_norm.cu", "my_norm.py", "test_my_norm.py"}) {
    const std::string path = folder.path(std::string("a/b/") + file);
    EXPECT_THAT(output.out, HasSubstr(path + "\n"));
    EXPECT_THAT(ReadWhole(path), HasSubstr("my_norm"));
    EXPECT_THAT(ReadWhole(path), Not(HasSubstr("NAME")));
  }
  const std::string source = folder.path("a/b/my_norm.cu");
  for (const char* entry : {"my_norm", "my_norm_on_host"}) {
    EXPECT_EQ(user_kernel::ParseSignature(ReadWhole(source), entry)->size(), 4u);
  }
  folder.Write("a/b/my_norm.py", "mine");
  EXPECT_EQ(std::filesystem::remove(source), true);
  const Output again = Program({"new-kernel", "my_norm", "--folder", folder.path("a/b")});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("my_norm.py is there already; nothing was written"));
  EXPECT_EQ(ReadWhole(folder.path("a/b/my_norm.py")), "mine");
  EXPECT_FALSE(std::filesystem::exists(source));
}

TEST(NewKernelTest, RefusesWhatIsWrong) {
  const TempFolder folder;
  const std::string file = folder.Write("file", "");
  const struct {
    std::vector<std::string> args;
    int code;
    const char* message;
  } cases[] = {{{}, 2, "NAME is missing"},
               {{"a b"}, 2, "NAME is 'a b'; it must be a name of at most 100 letters"},
               {{"../a"}, 2, "NAME is '../a'"},
               {{"1a"}, 2, "NAME is '1a'"},
               {{""}, 2, "NAME is ''"},
               {{"class"}, 2, "NAME is 'class', a word of C++ or Python"},
               {{"numpy"}, 2, "NAME is 'numpy'"},
               {{"a", "b"}, 2, "argument b is one too many"},
               {{"a", "--foldr", "b"}, 2, "did you mean --folder?"},
               {{"a", "--folder", file}, 1, "file"},
               {{"a", "--folder", file + "/b"}, 1, "file"},
               {{"a", "--folder", "/proc/no"}, 1, "/proc/no"}};
  for (const auto& c : cases) {
    std::vector<std::string> args = {"new-kernel"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Output output = Program(args);
    EXPECT_EQ(output.code, c.code) << output.err;
    EXPECT_THAT(output.err, HasSubstr(c.message));
  }
  EXPECT_THAT(Program({"new-kernle", "a"}).err, HasSubstr("did you mean new-kernel?"));
}

}  // namespace
}  // namespace xla_gpu::cli
