// Vectors of f32, and the element types of caches, queries and results: reading them as f32, and
// storing f32 as bf16 and f16.
//
// Nothing here relies on subnormal f32 arithmetic: XLA runs its threads with flush-to-zero.
#if defined(XLA_GPU_OPS_PAGED_CACHE_CPU_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_CACHE_CPU_ELEMENTS_INL_H_
#undef XLA_GPU_OPS_PAGED_CACHE_CPU_ELEMENTS_INL_H_
#else
#define XLA_GPU_OPS_PAGED_CACHE_CPU_ELEMENTS_INL_H_
#endif

#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "src/core/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_cache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF32 = hn::Vec<F32>;

// Vectors are powers of two up to 16 lanes, so rows padded to 16 elements serve every target.
constexpr size_t kLanes = hn::MaxLanes(F32());
static_assert(kLanes <= 16 && 16 % kLanes == 0);

// Calls f(i) for i from 0 to n - 1, each i a constant of its own, so that compilers see which
// element of an array of vectors is meant and keep each in a register. They must inline f.
#undef XLA_GPU_INLINE_LAMBDA
#define XLA_GPU_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))
template <size_t... kIndex, class F>
HWY_INLINE void UnrolledOver(std::index_sequence<kIndex...>, const F& f) {
  (f(std::integral_constant<size_t, kIndex>()), ...);
}
template <size_t n, class F>
HWY_INLINE void Unrolled(const F& f) {
  UnrolledOver(std::make_index_sequence<n>(), f);
}

// Targets whose f16 conversions are instructions, exact for infinities, NaN and subnormals.
#undef XLA_GPU_HAVE_F16_VECTORS
#if HWY_ARCH_ARM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
#define XLA_GPU_HAVE_F16_VECTORS 1
#else
#define XLA_GPU_HAVE_F16_VECTORS 0
#endif

// An element type of the cache: `Raw` as it is stored, Load of kLanes elements as f32 divided by
// kFactor. The factor is folded into k_scale and v_scale. LoadPair gives 2 * kLanes elements as two
// vectors: one half after the other or, if kEvenOdd, those of even and those of odd index. kDot is
// for types that are computed in bf16 (bf16-inl.h).
template <class T>
struct InOrder {
  static constexpr bool kDot = false;
  static constexpr bool kEvenOdd = false;
  template <typename Raw>
  static HWY_INLINE void LoadPair(const Raw* from, VF32* pair) {
    pair[0] = T::Load(from);
    pair[1] = T::Load(from + kLanes);
  }
};

struct CacheF32 : InOrder<CacheF32> {
  using Raw = float;
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE VF32 Load(const float* from) { return hn::LoadU(F32(), from); }
};

struct CacheBF16 {
  using Raw = uint16_t;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kEvenOdd = true;
  static constexpr bool kDot = false;
  // Half the instructions of widening: a 32-bit word is two elements, each the upper half of an
  // f32.
  static HWY_INLINE void LoadPair(const uint16_t* from, VF32* pair) {
    const U32 du;
    const auto words = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
    pair[0] = hn::BitCast(F32(), hn::ShiftLeft<16>(words));
    pair[1] = hn::BitCast(F32(), hn::And(words, hn::Set(du, 0xffff0000u)));
  }
  static HWY_INLINE VF32 Load(const uint16_t* from) {
    const auto bits = hn::LoadU(hn::Rebind<uint16_t, F32>(), from);
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
  }
};

#if XLA_GPU_HAVE_F16_VECTORS
template <class V>
HWY_INLINE VF32 PromoteF16Bits(V bits) {
  return hn::PromoteTo(F32(), hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), bits));
}

struct CacheF16 : InOrder<CacheF16> {
  using Raw = uint16_t;
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE VF32 Load(const uint16_t* from) {
    return PromoteF16Bits(hn::LoadU(hn::Rebind<uint16_t, F32>(), from));
  }
};

// An e4m3 number, its exponent field widened from 4 to 5 bits, is an f16 of 1/256 of the value.
struct CacheF8E4M3FN : InOrder<CacheF8E4M3FN> {
  using Raw = uint8_t;
  static constexpr float kFactor = 256.0f;
  static HWY_INLINE VF32 Load(const uint8_t* from) {
    return PromoteF16Bits(ToF16(hn::Rebind<int16_t, F32>(), from));
  }
  static HWY_INLINE void LoadPair(const uint8_t* from, VF32* pair) {
    const hn::RepartitionToNarrow<I32> d16;
    const auto bits = ToF16(d16, from);
    pair[0] = PromoteF16Bits(hn::LowerHalf(hn::Half<decltype(d16)>(), bits));
    pair[1] = PromoteF16Bits(hn::UpperHalf(hn::Half<decltype(d16)>(), bits));
  }

 private:
  // One more than the largest magnitude, NaN's, is a bit that makes it an f16's.
  template <class D16>
  static HWY_INLINE hn::Vec<D16> ToF16(D16 d16, const uint8_t* from) {
    const hn::Rebind<int8_t, D16> d8;
    const auto bits = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)));
    const auto number = hn::And(hn::ShiftLeft<7>(bits), hn::Set(d16, static_cast<int16_t>(0xbf80)));
    return hn::OrAnd(number, hn::Add(number, hn::Set(d16, 0x80)), hn::Set(d16, 0x4000));
  }
};

// e5m2 is the upper half of an f16.
struct CacheF8E5M2 {
  using Raw = uint8_t;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kDot = false;
  static constexpr bool kEvenOdd = true;
  static HWY_INLINE VF32 Load(const uint8_t* from) {
    const auto bits = hn::PromoteTo(D16(), hn::LoadU(hn::Rebind<uint8_t, F32>(), from));
    return PromoteF16Bits(hn::ShiftLeft<8>(bits));
  }
  static HWY_INLINE void LoadPair(const uint8_t* from, VF32* pair) {
    const auto words = hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(from));
    pair[0] = PromoteF16Bits(hn::ShiftLeft<8>(words));
    pair[1] = PromoteF16Bits(hn::And(words, hn::Set(D16(), 0xff00)));
  }

 private:
  using D16 = hn::Rebind<uint16_t, F32>;
};
#else   // element by element: correct on processors of before 2012
template <typename T, float (*kToFloat)(T)>
struct CacheScalar : InOrder<CacheScalar<T, kToFloat> > {
  using Raw = T;
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE VF32 Load(const T* from) {
    HWY_ALIGN float values[kLanes];
    for (size_t i = 0; i < kLanes; ++i) values[i] = kToFloat(from[i]);
    return hn::Load(F32(), values);
  }
};
using CacheF16 = CacheScalar<uint16_t, F16ToFloat>;
using CacheF8E4M3FN = CacheScalar<uint8_t, F8E4M3FNToFloat>;
using CacheF8E5M2 = CacheScalar<uint8_t, F8E5M2ToFloat>;
#endif  // XLA_GPU_HAVE_F16_VECTORS

// Rounds to nearest even; NaN stays NaN.
HWY_INLINE void StoreBF16(VF32 x, uint16_t* to) {
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  const auto chosen = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(hn::Rebind<uint16_t, F32>(), chosen), hn::Rebind<uint16_t, F32>(), to);
}

HWY_INLINE void StoreF16(VF32 x, uint16_t* to) {
#if XLA_GPU_HAVE_F16_VECTORS
  const hn::Rebind<hwy::float16_t, F32> d16;
  const hn::Rebind<uint16_t, F32> du16;
  hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, x)), du16, to);
#else
  HWY_ALIGN float values[kLanes];
  hn::Store(x, F32(), values);
  for (size_t i = 0; i < kLanes; ++i) to[i] = FloatToF16(values[i]);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_cache
HWY_AFTER_NAMESPACE();

#endif  // include guard
