// ConvertRow: reading an input row as f32 vectors and storing them as the cache's type.
#if defined(XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_CONVERT_INL_H_
#undef XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_CONVERT_INL_H_
#else
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CPU_CONVERT_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "src/ops/paged_cache/cpu/elements-inl.h"
#include "src/ops/update_kv_cache/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::update_kv_cache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace paged_cache::HWY_NAMESPACE;  // NOLINT: the elements

// An fp8 type by its numbers, for rounding in the integers that f32 is made of.
struct E4M3FN {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr float kLargest = 448.0f;
  static constexpr uint32_t kNaN = 0x7f;
};
struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr float kLargest = 57344.0f;
  static constexpr uint32_t kNaN = 0x7e;
};

template <class Format>
HWY_INLINE void StoreF8(VF32 x, uint8_t* to) {
  const F32 df;
  const U32 du;
  constexpr int kDropped = 23 - Format::kMantissaBits;
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80));
  const VF32 magnitude = hn::Min(hn::Abs(x), hn::Set(df, Format::kLargest));
  // Normal numbers: round the bits, then move the exponent to the new bias.
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, (1u << (kDropped - 1)) - 1)));
  const auto normal =
      hn::Sub(hn::ShiftRight<kDropped>(rounded),
              hn::Set(du, static_cast<uint32_t>(127 - Format::kBias) << Format::kMantissaBits));
  // Subnormal ones: added to a number whose last bit is worth one unit, the adder rounds them.
  constexpr int kUnitExponent = 1 - Format::kBias - Format::kMantissaBits;
  const VF32 anchor =
      hn::BitCast(df, hn::Set(du, static_cast<uint32_t>(127 + 23 + kUnitExponent) << 23));
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(magnitude, anchor)), hn::BitCast(du, anchor));
  const VF32 smallest_normal =
      hn::BitCast(df, hn::Set(du, static_cast<uint32_t>(128 - Format::kBias) << 23));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, smallest_normal));
  auto value = hn::IfThenElse(is_small, subnormal, normal);
  value = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, Format::kNaN), value);
  const hn::Rebind<uint8_t, F32> d8;
  hn::StoreU(hn::TruncateTo(d8, hn::Or(value, sign)), d8, to);
}

struct ToF32 {
  using Raw = float;
  static HWY_INLINE void Store(VF32 x, float* to) { hn::StoreU(x, F32(), to); }
};
struct ToBF16 {
  using Raw = uint16_t;
  static HWY_INLINE void Store(VF32 x, uint16_t* to) { StoreBF16(x, to); }
};
struct ToF16 {
  using Raw = uint16_t;
  static HWY_INLINE void Store(VF32 x, uint16_t* to) { StoreF16(x, to); }
};
template <class Format>
struct ToF8 {
  using Raw = uint8_t;
  static HWY_INLINE void Store(VF32 x, uint8_t* to) { StoreF8<Format>(x, to); }
};

template <class From, class To>
HWY_INLINE void Convert(const RowConversion& task) {
  const auto* from = static_cast<const typename From::Raw*>(task.from);
  auto* to = static_cast<typename To::Raw*>(task.to);
  const VF32 divisor = hn::Set(F32(), task.divisor);
  const size_t n = static_cast<size_t>(task.n);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) To::Store(hn::Div(From::Load(from + i), divisor), to + i);
  if (i == n) return;
  typename From::Raw tail[kLanes] = {};
  typename To::Raw converted[kLanes];
  std::memcpy(tail, from + i, (n - i) * sizeof(tail[0]));
  To::Store(hn::Div(From::Load(tail), divisor), converted);
  std::memcpy(to + i, converted, (n - i) * sizeof(converted[0]));
}

template <class From>
HWY_INLINE void ConvertFrom(const RowConversion& task) {
  switch (task.to_dtype) {
    case DType::kF32:
      return Convert<From, ToF32>(task);
    case DType::kBF16:
      return Convert<From, ToBF16>(task);
    case DType::kF16:
      return Convert<From, ToF16>(task);
    case DType::kF8E4M3FN:
      return Convert<From, ToF8<E4M3FN>>(task);
    default:
      return Convert<From, ToF8<E5M2>>(task);
  }
}

void ConvertRow(const RowConversion& task) {
  switch (task.from_dtype) {
    case DType::kF32:
      return ConvertFrom<CacheF32>(task);
    case DType::kBF16:
      return ConvertFrom<CacheBF16>(task);
    default:
      return ConvertFrom<CacheF16>(task);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::update_kv_cache
HWY_AFTER_NAMESPACE();

#endif  // include guard
