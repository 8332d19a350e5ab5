#include "src/core/strings.h"

#include <gtest/gtest.h>

#include <string>

#include "src/core/status.h"

namespace xla_gpu {
namespace {

constexpr char kMark[] = "\xef\xbf\xbd";  // U+FFFD

TEST(ValidUtf8, LeavesWhatIsWellFormed) {
  for (const std::string text :
       {"", "plain", "\u00fc\u20ac\U0001f600", "\xed\x9f\xbf\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
  EXPECT_EQ(ValidUtf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(ValidUtf8, MarksEveryOtherByte) {
  const std::string m = kMark;
  EXPECT_EQ(ValidUtf8("a\xff z"), "a" + m + " z");
  EXPECT_EQ(ValidUtf8("\xc3"), m) << "cut short";
  EXPECT_EQ(ValidUtf8("\xe2\x82"), m + m);
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), m + m) << "overlong";
  EXPECT_EQ(ValidUtf8("\xe0\x80\x80x"), m + m + m + "x");
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), m + m + m) << "a surrogate";
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), m + m + m + m) << "past U+10FFFF";
  EXPECT_EQ(ValidUtf8("\xc3\xbc\x80\xc3\xbc"), "\xc3\xbc" + m + "\xc3\xbc");
}

TEST(ValidUtf8, EveryStatusIsSo) {
  EXPECT_EQ(InvalidArgument("no op \xfe").message(), std::string("no op ") + kMark);
  EXPECT_EQ(Status(StatusCode::kInternal, "\x80").message(), kMark);
}

TEST(FromBase64, IsRfc4648) {
  EXPECT_EQ(FromBase64(""), "");
  EXPECT_EQ(FromBase64("Zg=="), "f");
  EXPECT_EQ(FromBase64("Zm8="), "fo");
  EXPECT_EQ(FromBase64("Zm9v"), "foo");
  EXPECT_EQ(FromBase64("AP/+/Q=="), std::string("\0\xff\xfe\xfd", 4));
  for (const char* wrong :
       {"Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zm9v\n", "Zm 9", "Zm-_", "="}) {
    EXPECT_FALSE(FromBase64(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace xla_gpu
