#include "src/core/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace xla_gpu {
namespace {

TEST(Status, OkHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "OK");
}

TEST(Status, ErrorsCarryTheCanonicalCodeAndTheirMessage) {
  struct Case {
    Status status;
    int code;
    const char* text;
  };
  const Case cases[] = {
      {InvalidArgument("m"), 3, "INVALID_ARGUMENT: m"},
      {NotFound("m"), 5, "NOT_FOUND: m"},
      {ResourceExhausted("m"), 8, "RESOURCE_EXHAUSTED: m"},
      {FailedPrecondition("m"), 9, "FAILED_PRECONDITION: m"},
      {Unimplemented("m"), 12, "UNIMPLEMENTED: m"},
      {Internal("m"), 13, "INTERNAL: m"},
      {Unavailable("m"), 14, "UNAVAILABLE: m"},
  };
  for (const Case& c : cases) {
    EXPECT_FALSE(c.status.ok());
    EXPECT_EQ(static_cast<int>(c.status.code()), c.code);
    EXPECT_EQ(c.status.ToString(), c.text);
  }
}

TEST(Status, EveryCodeHasAName) {
  for (int code : {2, 6, 7, 11, 15}) {
    EXPECT_NE(StatusCodeName(static_cast<StatusCode>(code)), "");
  }
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(99)), "UNKNOWN");
}

StatusOr<std::unique_ptr<int>> MakeInt(int value) {
  if (value < 0) return InvalidArgument("negative");
  return std::make_unique<int>(value);
}

StatusOr<int> AddInts(int a, int b) {
  XLA_GPU_ASSIGN_OR_RETURN(std::unique_ptr<int> x, MakeInt(a));
  XLA_GPU_ASSIGN_OR_RETURN(std::unique_ptr<int> y, MakeInt(b));
  return *x + *y;
}

Status CheckSum(int a, int b) {
  XLA_GPU_RETURN_IF_ERROR(AddInts(a, b).status());
  return OkStatus();
}

TEST(StatusOr, HoldsAValueThatOnlyMoves) {
  StatusOr<std::unique_ptr<int>> made = MakeInt(7);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(**made, 7);
  std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 7);
}

TEST(StatusOr, MacrosPassTheFirstErrorOn) {
  EXPECT_EQ(*AddInts(2, 3), 5);
  EXPECT_EQ(AddInts(2, -1).status().message(), "negative");
  EXPECT_TRUE(CheckSum(1, 1).ok());
  EXPECT_EQ(CheckSum(-1, 1).code(), StatusCode::kInvalidArgument);
}

TEST(StatusOrDeathTest, AnOkStatusIsNoValue) { EXPECT_DEATH(StatusOr<int>{OkStatus()}, ""); }

}  // namespace
}  // namespace xla_gpu
