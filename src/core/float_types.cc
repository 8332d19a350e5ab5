#include "src/core/float_types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace xla_gpu {
namespace {

// An IEEE-like float of 8 bits: sign, exponent bits, mantissa bits. What is past the largest finite
// value becomes that.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // else the all-ones pattern alone is NaN (the "fn" types)

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t max_exponent() const { return (1u << exponent_bits) - 1; }
  uint32_t mantissa_mask() const { return (1u << mantissa_bits) - 1; }
  uint32_t nan() const {
    return has_infinity ? (max_exponent() << mantissa_bits) | (1u << (mantissa_bits - 1))
                        : (max_exponent() << mantissa_bits) | mantissa_mask();
  }
  uint32_t infinity() const { return max_exponent() << mantissa_bits; }
  uint32_t largest() const { return has_infinity ? infinity() - 1 : nan() - 1; }
};

constexpr Format kF8E5M2{5, 2, true};
constexpr Format kF8E4M3FN{4, 3, false};

float Decode(uint32_t bits, const Format& format) {
  const uint32_t magnitude = bits & ((1u << (format.exponent_bits + format.mantissa_bits)) - 1);
  const float sign = bits >> (format.exponent_bits + format.mantissa_bits) ? -1.0f : 1.0f;
  const uint32_t exponent = magnitude >> format.mantissa_bits;
  const uint32_t mantissa = magnitude & format.mantissa_mask();
  if (format.has_infinity && exponent == format.max_exponent()) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  if (!format.has_infinity && magnitude == format.nan()) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign *
           std::ldexp(static_cast<float>(mantissa), 1 - format.bias() - format.mantissa_bits);
  }
  return sign * std::ldexp(static_cast<float>(mantissa | (1u << format.mantissa_bits)),
                           static_cast<int>(exponent) - format.bias() - format.mantissa_bits);
}

uint32_t Encode(float value, const Format& format) {
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 31)
                        << (format.exponent_bits + format.mantissa_bits);
  if (std::isnan(value)) return sign | format.nan();
  const float magnitude = std::fabs(value);
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  // The unit in the last place at this magnitude; subnormals share the smallest one.
  const int ulp_exponent = std::max(exponent - 1, 1 - format.bias()) - format.mantissa_bits;
  // nearbyint rounds half to even; the product is exact, so this is the only rounding.
  const double units = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -ulp_exponent));
  const double rounded = std::ldexp(units, ulp_exponent);
  const double largest = Decode(format.largest(), format);
  if (!(rounded <= largest)) return sign | format.largest();
  const uint32_t whole = static_cast<uint32_t>(units);
  if (whole < (1u << format.mantissa_bits)) return sign | whole;  // subnormal or zero
  const uint32_t biased =
      static_cast<uint32_t>(ulp_exponent + format.mantissa_bits + format.bias());
  // Rounding may have carried into the next power of two: adding the units keeps that right.
  return sign | ((biased << format.mantissa_bits) + (whole - (1u << format.mantissa_bits)));
}

}  // namespace

float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
float F16ToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
  constexpr uint32_t kLeastNormal = 113u << 23;  // 2^-14
  uint32_t wide = magnitude + (magnitude < 0x7c00u << 13 ? 112u << 23 : 224u << 23);
  if (magnitude < 0x0400u << 13) {  // a subnormal or zero; no number here is f32's
    wide = std::bit_cast<uint32_t>(std::bit_cast<float>(kLeastNormal + magnitude) - 0x1p-14f);
  }
  return std::bit_cast<float>(sign | wide);
}
float F8E4M3FNToFloat(uint8_t bits) { return Decode(bits, kF8E4M3FN); }
float F8E5M2ToFloat(uint8_t bits) { return Decode(bits, kF8E5M2); }

uint16_t FloatToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  // Rounded by a carry into the exponent, which may become infinity's.
  uint32_t narrow = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  if (magnitude < 113u << 23) {  // below 2^-14: in units of 2^-24, those of 0.5
    narrow = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
  }
  if (magnitude >= 143u << 23) narrow = magnitude > 255u << 23 ? 0x7e00 : 0x7c00;
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | narrow);
}
uint8_t FloatToF8E4M3FN(float value) { return static_cast<uint8_t>(Encode(value, kF8E4M3FN)); }
uint8_t FloatToF8E5M2(float value) { return static_cast<uint8_t>(Encode(value, kF8E5M2)); }

double LoadAsDouble(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return BF16ToFloat(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return F16ToFloat(static_cast<const uint16_t*>(data)[index]);
    case DType::kF8E4M3FN:
      return F8E4M3FNToFloat(static_cast<const uint8_t*>(data)[index]);
    case DType::kF8E5M2:
      return F8E5M2ToFloat(static_cast<const uint8_t*>(data)[index]);
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

void StoreFromDouble(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(data)[index] = value;
      break;
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = FloatToBF16(static_cast<float>(value));
      break;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = FloatToF16(static_cast<float>(value));
      break;
    case DType::kF8E4M3FN:
      static_cast<uint8_t*>(data)[index] = FloatToF8E4M3FN(static_cast<float>(value));
      break;
    case DType::kF8E5M2:
      static_cast<uint8_t*>(data)[index] = FloatToF8E5M2(static_cast<float>(value));
      break;
    default:
      break;
  }
}

void LoadFloats(const void* from, DType dtype, int64_t first, std::span<float> to) {
  const auto each = [&](const auto* elements, auto convert) {
    std::transform(elements + first, elements + first + to.size(), to.begin(), convert);
  };
  if (dtype == DType::kF32) {
    each(static_cast<const float*>(from), [](float x) { return x; });
  } else if (dtype == DType::kBF16) {
    each(static_cast<const uint16_t*>(from), [](uint16_t x) { return BF16ToFloat(x); });
  } else {
    each(static_cast<const uint16_t*>(from), [](uint16_t x) { return F16ToFloat(x); });
  }
}

void StoreFloats(std::span<const float> from, void* to, DType dtype, int64_t first) {
  const auto each = [&](auto* elements, auto convert) {
    std::transform(from.begin(), from.end(), elements + first, convert);
  };
  if (dtype == DType::kF32) {
    each(static_cast<float*>(to), [](float x) { return x; });
  } else if (dtype == DType::kBF16) {
    each(static_cast<uint16_t*>(to), [](float x) { return FloatToBF16(x); });
  } else {
    each(static_cast<uint16_t*>(to), [](float x) { return FloatToF16(x); });
  }
}

}  // namespace xla_gpu
