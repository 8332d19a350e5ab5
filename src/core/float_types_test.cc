#include "src/core/float_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace xla_gpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every value of a narrow type becomes an f32 that turns back into the same bits; NaN stays NaN.
template <typename Bits, typename ToFloat, typename FromFloat>
void ExpectRoundTrip(int count, ToFloat to_float, FromFloat from_float, bool saturates) {
  int nans = 0;
  for (int i = 0; i < count; ++i) {
    const float value = to_float(static_cast<Bits>(i));
    if (std::isnan(value)) {
      ++nans;
      EXPECT_TRUE(std::isnan(to_float(from_float(value)))) << i;
    } else if (std::isinf(value) && saturates) {
      EXPECT_TRUE(std::isfinite(to_float(from_float(value)))) << i;
    } else {
      EXPECT_EQ(from_float(value), static_cast<Bits>(i)) << value;
    }
  }
  EXPECT_GT(nans, 0);
}

TEST(FloatTypes, EveryValueRoundTrips) {
  ExpectRoundTrip<uint16_t>(1 << 16, BF16ToFloat, FloatToBF16, false);
  ExpectRoundTrip<uint16_t>(1 << 16, F16ToFloat, FloatToF16, false);
  ExpectRoundTrip<uint8_t>(1 << 8, F8E4M3FNToFloat, FloatToF8E4M3FN, true);
  ExpectRoundTrip<uint8_t>(1 << 8, F8E5M2ToFloat, FloatToF8E5M2, true);
}

// Between two neighbours: the nearer one, and the even one from the middle.
template <typename Bits, typename ToFloat, typename FromFloat>
void ExpectNearestEven(int largest_finite, ToFloat to_float, FromFloat from_float) {
  for (int i = 0; i < largest_finite; ++i) {
    const float lo = to_float(static_cast<Bits>(i));
    const float hi = to_float(static_cast<Bits>(i + 1));
    ASSERT_LT(lo, hi);
    const float middle = static_cast<float>((static_cast<double>(lo) + hi) / 2);
    const Bits even = static_cast<Bits>(i % 2 == 0 ? i : i + 1);
    ASSERT_EQ(from_float(middle), even) << middle;
    ASSERT_EQ(from_float(std::nextafter(middle, -kInf)), static_cast<Bits>(i)) << middle;
    ASSERT_EQ(from_float(std::nextafter(middle, kInf)), static_cast<Bits>(i + 1)) << middle;
    const Bits sign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
    ASSERT_EQ(from_float(-middle), even | sign) << middle;
  }
}

TEST(FloatTypes, RoundsToNearestEven) {
  ExpectNearestEven<uint16_t>(0x7bff, F16ToFloat, FloatToF16);
  ExpectNearestEven<uint16_t>(0x7f7f, BF16ToFloat, FloatToBF16);
  ExpectNearestEven<uint8_t>(0x7e, F8E4M3FNToFloat, FloatToF8E4M3FN);
  ExpectNearestEven<uint8_t>(0x7b, F8E5M2ToFloat, FloatToF8E5M2);
}

TEST(FloatTypes, KnownValues) {
  EXPECT_EQ(BF16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(F16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(F16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(F8E4M3FNToFloat(0x38), 1.0f);
  EXPECT_EQ(F8E4M3FNToFloat(0x7e), 448.0f);
  EXPECT_EQ(F8E4M3FNToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(F8E5M2ToFloat(0x3c), 1.0f);
  EXPECT_EQ(F8E5M2ToFloat(0x7b), 57344.0f);
  EXPECT_EQ(F8E5M2ToFloat(0x7c), kInf);
  EXPECT_TRUE(std::isnan(F8E4M3FNToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(F8E4M3FNToFloat(0xff)));
}

TEST(FloatTypes, OverflowBecomesInfinityOrSaturates) {
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-kInf), 0xfc00);
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::max()), 0x7f80);
  for (float huge : {449.0f, 1e30f, kInf}) {
    EXPECT_EQ(FloatToF8E4M3FN(huge), 0x7e) << huge;
    EXPECT_EQ(FloatToF8E4M3FN(-huge), 0xfe) << huge;
  }
  for (float huge : {57345.0f, 65536.0f, 1e30f, kInf}) {
    EXPECT_EQ(FloatToF8E5M2(huge), 0x7b) << huge;
    EXPECT_EQ(FloatToF8E5M2(-huge), 0xfb) << huge;
  }
}

TEST(FloatTypes, SignedZeroAndNaN) {
  EXPECT_EQ(FloatToBF16(-0.0f), 0x8000);
  EXPECT_EQ(FloatToF16(-0.0f), 0x8000);
  EXPECT_EQ(FloatToF8E4M3FN(-0.0f), 0x80);
  EXPECT_EQ(FloatToF8E5M2(-0.0f), 0x80);
  EXPECT_EQ(FloatToF16(1e-10f), 0);
  // A NaN whose payload lies in the low bits alone must not become infinity.
  float payload;
  const uint32_t bits = 0x7f800001;
  std::memcpy(&payload, &bits, sizeof(bits));
  EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(payload))));
  EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(kNaN))));
  EXPECT_TRUE(std::isnan(F8E4M3FNToFloat(FloatToF8E4M3FN(kNaN))));
  EXPECT_TRUE(std::isnan(F8E5M2ToFloat(FloatToF8E5M2(-kNaN))));
}

TEST(FloatTypes, LoadAndStoreByDType) {
  for (DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN, DType::kF8E5M2}) {
    double storage[4] = {};
    StoreFromDouble(storage, dtype, 3, -1.75);
    EXPECT_EQ(LoadAsDouble(storage, dtype, 3), -1.75) << DTypeName(dtype);
    EXPECT_EQ(LoadAsDouble(storage, dtype, 2), 0.0) << DTypeName(dtype);
  }
  const int32_t whole = 1;
  EXPECT_TRUE(std::isnan(LoadAsDouble(&whole, DType::kI32, 0)));
}

}  // namespace
}  // namespace xla_gpu
