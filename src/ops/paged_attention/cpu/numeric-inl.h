// Reading cache elements as f32 vectors, exp2, tanh, and storing f32 rows as the output's type.
//
// Nothing here relies on subnormal f32 arithmetic: XLA runs its threads with flush-to-zero.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_NUMERIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_NUMERIC_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_NUMERIC_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_NUMERIC_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "src/core/dtype.h"
#include "src/core/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF32 = hn::Vec<F32>;

// Vectors are powers of two up to 16 lanes, so rows padded to 16 elements serve every target.
constexpr size_t kLanes = hn::MaxLanes(F32());
static_assert(kLanes <= 16 && 16 % kLanes == 0);

// Targets whose f16 conversions are instructions, exact for infinities, NaN and subnormals.
#undef XLA_GPU_HAVE_F16_VECTORS
#if HWY_ARCH_ARM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
#define XLA_GPU_HAVE_F16_VECTORS 1
#else
#define XLA_GPU_HAVE_F16_VECTORS 0
#endif

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

// An element type of the cache: `Raw` as it is stored, Load of kLanes elements as f32 divided by
// kFactor. The factor is folded into k_scale and v_scale. LoadPair gives 2 * kLanes elements as two
// vectors: one half after the other or, if kEvenOdd, those of even and those of odd index. kDot:
// decode takes queries as they are stored and multiplies them by DotBF16.
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
    const hn::Rebind<uint16_t, F32> d16;
    const auto bits = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<uint8_t, F32>(), from));
    const auto sign = hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, 0x80)));
    const auto magnitude = hn::ShiftLeft<7>(hn::And(bits, hn::Set(d16, 0x7f)));
    const auto is_nan = hn::Eq(magnitude, hn::Set(d16, 0x7f << 7));
    const auto value = hn::IfThenElse(is_nan, hn::Set(d16, 0x7e00), magnitude);
    return PromoteF16Bits(hn::Or(sign, value));
  }
};

// e5m2 is the upper half of an f16.
struct CacheF8E5M2 : InOrder<CacheF8E5M2> {
  using Raw = uint8_t;
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE VF32 Load(const uint8_t* from) {
    const hn::Rebind<uint16_t, F32> d16;
    const auto bits = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<uint8_t, F32>(), from));
    return PromoteF16Bits(hn::ShiftLeft<8>(bits));
  }
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

// One row of the cache for each key: row j is `head` elements after row[j].
template <typename Raw>
struct HeadRows {
  const Raw* const* row;
  int64_t head;

  HWY_INLINE const Raw* operator[](size_t j) const { return row[j] + head; }
  HWY_INLINE HeadRows From(size_t first) const { return {row + first, head}; }
};

// Calls f with the element type of the cache.
template <class F>
HWY_INLINE void WithCacheType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(CacheF32());
    case DType::kBF16:
      return f(CacheBF16());
    case DType::kF16:
      return f(CacheF16());
    case DType::kF8E4M3FN:
      return f(CacheF8E4M3FN());
    default:
      return f(CacheF8E5M2());
  }
}

// n elements as f32 times `factor`, then zeros up to `padded` (a multiple of kLanes). Reads no
// element past n.
template <class T>
HWY_INLINE void LoadRow(const typename T::Raw* from, size_t n, float factor, float* to,
                        size_t padded) {
  const F32 df;
  const VF32 scale = hn::Set(df, factor);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::Store(hn::Mul(T::Load(from + i), scale), df, to + i);
  if (i < n) {
    typename T::Raw tail[kLanes] = {};
    std::memcpy(tail, from + i, (n - i) * sizeof(tail[0]));
    hn::Store(hn::Mul(T::Load(tail), scale), df, to + i);
    i += kLanes;
  }
  for (; i < padded; i += kLanes) hn::Store(hn::Zero(df), df, to + i);
}

// 2^x for x <= 127, within 2 ulp; 0 below the normal range. NaN gives NaN.
HWY_INLINE VF32 Exp2(VF32 x) {
  const F32 df;
  const I32 di;
  const auto whole = hn::NearestInt(x);
  const VF32 r = hn::Sub(x, hn::ConvertTo(df, whole));
  // Minimax on [-1/2, 1/2], relative error 2e-9.
  VF32 y = hn::Set(df, 0.0001535336136128136f);
  y = hn::MulAdd(y, r, hn::Set(df, 0.0013398874659806177f));
  y = hn::MulAdd(y, r, hn::Set(df, 0.009618437361872742f));
  y = hn::MulAdd(y, r, hn::Set(df, 0.055503324703477956f));
  y = hn::MulAdd(y, r, hn::Set(df, 0.24022647913563086f));
  y = hn::MulAdd(y, r, hn::Set(df, 0.6931472028555586f));
  y = hn::MulAdd(y, r, hn::Set(df, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(whole, hn::Set(di, 127)));
  y = hn::Mul(y, hn::BitCast(df, power));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -126.0f)), y);
}

HWY_INLINE float Exp2(float x) { return hn::GetLane(Exp2(hn::Set(F32(), x))); }

HWY_INLINE VF32 Tanh(VF32 x) {
  const F32 df;
  const VF32 magnitude = hn::Abs(x);
  // Near 0: x + x^3 P(x^2), relative error 4e-9 up to 0.625.
  const VF32 z = hn::Mul(x, x);
  VF32 p = hn::Set(df, -0.00570498594764532f);
  p = hn::MulAdd(p, z, hn::Set(df, 0.02063908608168124f));
  p = hn::MulAdd(p, z, hn::Set(df, -0.05373971462657494f));
  p = hn::MulAdd(p, z, hn::Set(df, 0.1333144219069249f));
  p = hn::MulAdd(p, z, hn::Set(df, -0.33333281941601145f));
  const VF32 small = hn::MulAdd(hn::Mul(p, z), x, x);
  // Elsewhere: 1 - 2 / (e^2x + 1); 1 in f32 from 10 on.
  const VF32 ten = hn::Set(df, 10.0f);
  const VF32 bounded = hn::IfThenElse(hn::Gt(magnitude, ten), ten, magnitude);
  const VF32 e = Exp2(hn::Mul(bounded, hn::Set(df, 2.8853900817779268f)));
  const VF32 one = hn::Set(df, 1.0f);
  const VF32 large = hn::Sub(one, hn::Div(hn::Set(df, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(df, 0.625f)), small, hn::CopySign(large, x));
}

// kLanes vectors to one: lane i is the sum of the lanes of v[i]. Moves within blocks of 128 bits
// first: those that cross them take table lookups or wait longer.
HWY_INLINE VF32 SumEach(const VF32* v) {
#if HWY_TARGET != HWY_SCALAR
  const F32 df;
  const hn::Repartition<uint64_t, F32> du64;
  constexpr size_t kQuads = kLanes / 4;
  VF32 quads[kQuads];  // each block of quads[i]: the sums of that block of v[4i ... 4i + 3]
  Unrolled<kQuads>([&](auto i) XLA_GPU_INLINE_LAMBDA {
    const VF32* from = v + 4 * i;
    const auto pair = [&](const VF32& x, const VF32& y) XLA_GPU_INLINE_LAMBDA {
      const VF32 sums = hn::Add(hn::InterleaveLower(df, x, y), hn::InterleaveUpper(df, x, y));
      return hn::BitCast(du64, sums);
    };
    const auto lo = pair(from[0], from[1]);
    const auto hi = pair(from[2], from[3]);
    quads[i] = hn::Add(hn::BitCast(df, hn::InterleaveLower(du64, lo, hi)),
                       hn::BitCast(df, hn::InterleaveUpper(du64, lo, hi)));
  });
  if constexpr (kLanes == 16) {
    const auto pair = [&](const VF32& x, const VF32& y) XLA_GPU_INLINE_LAMBDA {
      return hn::Add(hn::OddEvenBlocks(y, x), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(x, y)));
    };
    quads[0] = pair(quads[0], quads[1]);
    quads[1] = pair(quads[2], quads[3]);
  }
  if constexpr (kLanes >= 8) {
    return hn::Add(hn::ConcatUpperLower(df, quads[1], quads[0]),
                   hn::ConcatLowerUpper(df, quads[1], quads[0]));
  }
  return quads[0];
#else
  return v[0];
#endif
}

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

// Sums of f32 that grow with the context are taken into f64 now and then.
using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;

// to[0, n) += from, then from = 0; n is a multiple of kLanes.
HWY_INLINE void MoveInto(float* from, size_t n, double* to) {
  const F64 d;
  const HalfF32 half;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::Store(hn::Add(hn::Load(d, to + i), hn::PromoteTo(d, hn::Load(half, from + i))), d, to + i);
    hn::Store(hn::Zero(half), half, from + i);
  }
}

// to[0, n) += factor * from.
HWY_INLINE void AddScaled(double factor, const float* from, size_t n, double* to) {
  const F64 d;
  const auto scale = hn::Set(d, factor);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::PromoteTo(d, hn::Load(HalfF32(), from + i));
    hn::Store(hn::MulAdd(scale, x, hn::Load(d, to + i)), d, to + i);
  }
}

// to[0, n) = from. Highway's emulated DemoteTo would make infinities the largest finite numbers.
HWY_INLINE void RoundInto(const double* from, size_t n, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

// x[0, n) *= factor, for vectors of tag D.
template <class D>
HWY_INLINE void ScaleBy(D d, hn::TFromD<D> factor, hn::TFromD<D>* x, size_t n) {
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Set(d, factor), hn::Load(d, x + i)), d, x + i);
  }
}

// out[0, n) = row * first * second in the type `dtype`; `row` is readable up to a multiple of
// kLanes. The product of the factors may leave the range of f32.
HWY_INLINE void StoreRow(const float* row, size_t n, float first, float second, DType dtype,
                         void* out) {
  const F32 df;
  for (size_t i = 0; i < n; i += kLanes) {
    const VF32 x =
        hn::Mul(hn::Mul(hn::LoadU(df, row + i), hn::Set(df, first)), hn::Set(df, second));
    const size_t left = n - i < kLanes ? n - i : kLanes;
    if (dtype == DType::kF32) {
      HWY_ALIGN float tail[kLanes];
      float* to = static_cast<float*>(out) + i;
      hn::StoreU(x, df, left == kLanes ? to : tail);
      if (left < kLanes) std::memcpy(to, tail, left * sizeof(float));
    } else {
      uint16_t tail[kLanes];
      uint16_t* to = static_cast<uint16_t*>(out) + i;
      uint16_t* target = left == kLanes ? to : tail;
      dtype == DType::kBF16 ? StoreBF16(x, target) : StoreF16(x, target);
      if (left < kLanes) std::memcpy(to, tail, left * sizeof(uint16_t));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
