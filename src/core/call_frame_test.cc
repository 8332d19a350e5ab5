#include "src/core/call_frame.h"

#include <gtest/gtest.h>

#include <vector>

namespace xla_gpu {
namespace {

constexpr DType kF32 = DType::kF32;

TEST(TensorList, TakesAsManyAsACallMayHave) {
  TensorList list("result");
  EXPECT_TRUE(list.CheckCount(64).ok());
  EXPECT_EQ(list.CheckCount(65).message(), "65 results came; at most 64 may");
  int data[64];
  const int64_t dims[] = {2, 3};
  for (int& x : data) ASSERT_TRUE(list.Add(&x, kF32, 2, dims).ok());
  EXPECT_EQ(list.Add(data, kF32, 2, dims).message(), "65 results came; at most 64 may");
  ASSERT_EQ(list.views().size(), 64);
  EXPECT_EQ(list.views()[63].data, &data[63]);
  EXPECT_EQ(list.views()[63].ToString(), "f32[2,3]");
}

TEST(TensorList, RefusesRanksThatCannotBe) {
  TensorList list("argument");
  const std::vector<int64_t> dims(33, 1);
  EXPECT_TRUE(list.Add(nullptr, kF32, 0, nullptr).ok());
  EXPECT_TRUE(list.Add(nullptr, kF32, 32, dims.data()).ok());
  EXPECT_EQ(list.Add(nullptr, kF32, 33, dims.data()).message(),
            "argument 2 has rank 33; rank must be 0 to 32, with as many dims");
  EXPECT_EQ(list.Add(nullptr, kF32, -1, nullptr).message(),
            "argument 2 has rank -1; rank must be 0 to 32, with as many dims");
  EXPECT_EQ(list.Add(nullptr, kF32, 1, nullptr).message(),
            "argument 2 has rank 1 but dims is NULL; rank must be 0 to 32, with as many dims");
  EXPECT_EQ(list.views().size(), 2);
}

TEST(CallFrame, WidensUntilItsRoomIsFull) {
  CallFrame frame;
  const std::vector<int32_t> values(CallFrame::kMaxWidened - 2, -7);
  const auto first = frame.Widen(values);
  ASSERT_TRUE(first);
  EXPECT_EQ(std::vector<int64_t>(first->begin(), first->end()),
            std::vector<int64_t>(values.size(), -7));
  const std::vector<int32_t> three = {1, 2, 3};
  EXPECT_FALSE(frame.Widen(three));
  const auto last = frame.Widen(std::span(three).first(2));
  ASSERT_TRUE(last);
  EXPECT_EQ((*last)[1], 2);
  EXPECT_EQ(first->back(), -7);
  EXPECT_TRUE(frame.Widen({}));
}

}  // namespace
}  // namespace xla_gpu
