#include "src/core/attributes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

using ::testing::HasSubstr;

TEST(Attributes, EachTypeIsReadBack) {
  const std::vector<int64_t> ints = {1, -2, 3};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("b", true).ok());
  ASSERT_TRUE(attributes.Add("i", int64_t{-7}).ok());
  ASSERT_TRUE(attributes.Add("f", 0.5).ok());
  ASSERT_TRUE(attributes.Add("s", std::string_view("text")).ok());
  ASSERT_TRUE(attributes.Add("a", std::span<const int64_t>(ints)).ok());
  EXPECT_EQ(attributes.all().size(), 5);
  EXPECT_TRUE(attributes.GetBool("b", false));
  EXPECT_EQ(attributes.GetInt("i", 0), -7);
  EXPECT_EQ(attributes.GetFloat("f", 0), 0.5);
  EXPECT_EQ(attributes.GetString("s", ""), "text");
  EXPECT_EQ(std::get<std::span<const int64_t>>(*attributes.Find("a"))[1], -2);
}

TEST(Attributes, AbsentAndMistypedOnesGiveTheFallback) {
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("s", std::string_view("text")).ok());
  EXPECT_TRUE(attributes.GetBool("s", true));
  EXPECT_EQ(attributes.GetInt("s", 4), 4);
  EXPECT_EQ(attributes.GetFloat("s", 0.25), 0.25);
  EXPECT_EQ(attributes.GetString("absent", "none"), "none");
  EXPECT_EQ(attributes.Find("absent"), nullptr);
  EXPECT_EQ(attributes.Find("S"), nullptr);
}

TEST(Attributes, AnIntStandsForAFloatButNotTheOtherWay) {
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("i", int64_t{3}).ok());
  ASSERT_TRUE(attributes.Add("f", 3.0).ok());
  EXPECT_EQ(attributes.GetFloat("i", 0), 3.0);
  EXPECT_EQ(attributes.GetInt("f", 8), 8);
}

TEST(Attributes, ANameMayComeOnce) {
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("scale", 1.0).ok());
  const Status twice = attributes.Add("scale", 2.0);
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(twice.message(), "attribute 'scale' is given twice");
  EXPECT_EQ(attributes.GetFloat("scale", 0), 1.0);
}

TEST(Attributes, TheirNumberHasABound) {
  std::vector<std::string> names;
  for (int i = 0; i <= Attributes::kMaxAttributes; ++i) names.push_back(StrCat("a", i));
  Attributes attributes;
  for (int i = 0; i < Attributes::kMaxAttributes; ++i) {
    ASSERT_TRUE(attributes.Add(names[i], int64_t{i}).ok());
  }
  EXPECT_THAT(attributes.Add(names.back(), true).message(), HasSubstr("at most 32"));
  EXPECT_EQ(attributes.all().size(), Attributes::kMaxAttributes);
}

TEST(AttrToString, WritesValuesAsMessagesDo) {
  const std::vector<int64_t> ints = {1, 2};
  const auto text = [](AttrValue value) {
    return std::string(AttrTypeName(TypeOf(value))) + " " + AttrToString(value);
  };
  EXPECT_EQ(text(true), "bool true");
  EXPECT_EQ(text(int64_t{-1}), "int -1");
  EXPECT_EQ(text(0.5), "float 0.5");
  EXPECT_EQ(text(std::string_view("x")), "string \"x\"");
  EXPECT_EQ(text(std::span<const int64_t>(ints)), "int array [1,2]");
  EXPECT_EQ(text(std::span<const int64_t>()), "int array []");
}

}  // namespace
}  // namespace xla_gpu
