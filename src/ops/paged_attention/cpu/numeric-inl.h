// Loading and storing rows of elements, exp2, tanh, and sums.
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

#include "hwy/highway.h"
#include "src/core/dtype.h"
#include "src/ops/paged_attention/problem.h"
#include "src/ops/paged_cache/cpu/amx.h"
#include "src/ops/paged_cache/cpu/bf16-inl.h"
#include "src/ops/paged_cache/cpu/elements-inl.h"
#include "src/ops/paged_cache/cpu/instruction_set.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using namespace paged_cache::HWY_NAMESPACE;  // NOLINT: the elements

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

// Calls f with the element type that a problem's cache is taken as: bf16 for queries and results of
// bf16 over caches of bf16 and fp8. The weights of values are then rounded to bf16, as
// FlashAttention does. Where each token has scales, it is made f32 as it is loaded.
template <class F>
HWY_INLINE void WithComputeType(const Problem& p, const F& f) {
#if XLA_GPU_HAVE_BF16_DOT
  if (p.query_dtype == DType::kBF16 && p.out_dtype == DType::kBF16 && !p.has_token_scales() &&
      paged_cache::UsesBF16Products()) {
    if (p.cache_dtype == DType::kBF16) return f(DotBF16Cache());
    if (p.cache_dtype == DType::kF8E4M3FN) return f(DotF8E4M3FNCache());
    if (p.cache_dtype == DType::kF8E5M2) return f(DotF8E5M2Cache());
  }
#endif
  WithCacheType(p.cache_dtype, f);
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

// 2^(x - kDown) for x <= 127, within 2 ulp; 0 below the normal range. NaN gives NaN.
template <int kDown = 0>
HWY_INLINE VF32 Exp2(VF32 x) {
  const F32 df;
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3
  x = hn::Max(hn::Set(df, -200.0f), x);  // the second one if it is NaN
#endif
  // Adding 1.5 * 2^23 rounds to a whole number, in the lowest bits of the sum.
  const VF32 magic = hn::Set(df, 12582912.0f);
  const VF32 shifted = hn::Add(x, magic);
  const VF32 whole = hn::Sub(shifted, magic);
  const VF32 r = hn::Sub(x, whole);
  // Minimax on [-1/2, 1/2], relative error 2e-9.
  constexpr float kOne = 1.0f / (1 << kDown);
  VF32 y = hn::Set(df, kOne * 0.0001535336136128136f);
  y = hn::MulAdd(y, r, hn::Set(df, kOne * 0.0013398874659806177f));
  y = hn::MulAdd(y, r, hn::Set(df, kOne * 0.009618437361872742f));
  y = hn::MulAdd(y, r, hn::Set(df, kOne * 0.055503324703477956f));
  y = hn::MulAdd(y, r, hn::Set(df, kOne * 0.24022647913563086f));
  y = hn::MulAdd(y, r, hn::Set(df, kOne * 0.6931472028555586f));
  y = hn::MulAdd(y, r, hn::Set(df, kOne));
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3
  return VF32{_mm512_scalef_ps(y.raw, whole.raw)};
#else
  const U32 du;
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::BitCast(du, shifted), hn::Set(du, 127)));
  y = hn::Mul(y, hn::BitCast(df, power));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, kDown - 126.0f)), y);
#endif
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
