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
  EXPECT_THAT(IncludedTexts(text, "",
                            {"-O2", "-I" + folder.path("one"), "-iquote", folder.path("two"),
                             "--include-path=" + folder.path("three")}),
              ElementsAre("#include <b.h>\n#include \"a.h\"\n", "c", "b"));
  EXPECT_THAT(IncludedTexts(text, "", {"-isystem", folder.path("three"), "-I"}), ElementsAre("c"));
  EXPECT_THAT(IncludedTexts(text, "", {}), IsEmpty());
}

TEST(Includes, DirectivesOfEveryForm) {
  const char* text =
      "/* a */ # /* b */ include/**/\"a.h\"\n#include_next <b.h>\n#import \"c.h\"\n"
      "#include \\\n \"d.h\"\n#define E \"e.h\"\n#define F <f.h>\n#define G 1\n/* open";
  EXPECT_THAT(Includes(text, true), ElementsAre("a.h", "b.h", "c.h", "d.h", "e.h", "f.h"));
  EXPECT_THAT(Includes(text, false), ElementsAre("a.h", "c.h", "d.h"));
}

TEST(Includes, FilesBesideTheOneThatIncludesThem) {
  const TempFolder folder;
  folder.Write("lib/inner/a.h", "#include \"b.h\"\n#include \"../c.h\"\n");
  folder.Write("lib/inner/b.h", "#include \"../inner/b.h\"\n");  // itself
  folder.Write("lib/c.h", "c");
  folder.Write("d.h", "d");
  const std::string text = "#include <inner/a.h>\n#include \"" + folder.path("d.h") + "\"\n";
  EXPECT_THAT(IncludedTexts(text, "", {"-I" + folder.path("lib")}),
              ElementsAre("#include \"b.h\"\n#include \"../c.h\"\n", "d",
                          "#include \"../inner/b.h\"\n", "c"));
  EXPECT_THAT(IncludedTexts("#include \"d.h\"", folder.path("e.cu"), {}), ElementsAre("d"));
}

TEST(Includes, FilesThatOptionsName) {
  const TempFolder folder;
  folder.Write("a.h", "#include \"b.h\"\n");
  folder.Write("b.h", "b");
  folder.Write("c.h", "c");
  folder.Write("d.o", "d");
  const std::vector<std::string> options = {"-idirafter", folder.path(),      "-include",
                                            "a.h",        "-DCONFIG=\"c.h\"", folder.path("d.o")};
  EXPECT_THAT(IncludedTexts("#include CONFIG\n", "", options),
              ElementsAre("#include \"b.h\"\n", "c", "d", "b"));
  EXPECT_THAT(IncludedTexts("", "", {"--pre-include=" + folder.path("c.h")}), ElementsAre("c"));
}

}  // namespace
}  // namespace xla_gpu
