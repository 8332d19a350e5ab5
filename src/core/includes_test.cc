#include "src/core/includes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/core/test_util.h"

namespace xla_gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Includes, TheNamesOfAText) {
  const char* text =
      "#include \"a.h\"\n  # include <b/c.h>\n#include MACRO\n#include \"open\n"
      "// #include \"d.h\"\nint x; #include \"e.h\"\n";
  EXPECT_THAT(Includes(text, true), ElementsAre("a.h", "b/c.h"));
  EXPECT_THAT(Includes(text, false), ElementsAre("a.h"));
}

TEST(Includes, TheTextsOfTheFoldersOfOptions) {
  const TempFolder folder;
  folder.Write("one/a.h", "#include <b.h>\n#include \"a.h\"\n");
  folder.Write("two/b.h", "b");
  folder.Write("three/c.h", "c");
  const std::string text = "#include \"a.h\"\n#include <c.h>\n#include \"none.h\"\n";
  EXPECT_THAT(IncludedTexts(text, {"-O2", "-I" + folder.path("one"), "-iquote", folder.path("two"),
                                   "--include-path=" + folder.path("three")}),
              ElementsAre("#include <b.h>\n#include \"a.h\"\n", "c", "b"));
  EXPECT_THAT(IncludedTexts(text, {"-isystem", folder.path("three"), "-I"}), ElementsAre("c"));
  EXPECT_THAT(IncludedTexts(text, {}), IsEmpty());
}

}  // namespace
}  // namespace xla_gpu
