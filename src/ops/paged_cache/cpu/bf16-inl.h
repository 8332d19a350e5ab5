// Products of bf16, of elements of bf16 and fp8: twice the multiplications an instruction of f32.
// Products are exact and sums are f32.
//
// Highway has no target for AVX-512 with just the extensions used here, AVX512_BF16 and
// AVX512_VBMI: their instructions are asked for by name, so that what calls them stays one template
// for all types. Only who has asked MayUse(kAvx3BF16) may come here.
#if defined(XLA_GPU_OPS_PAGED_CACHE_CPU_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_CACHE_CPU_BF16_INL_H_
#undef XLA_GPU_OPS_PAGED_CACHE_CPU_BF16_INL_H_
#else
#define XLA_GPU_OPS_PAGED_CACHE_CPU_BF16_INL_H_
#endif

#include <array>
#include <cstring>

#include "hwy/highway.h"
#include "src/ops/paged_cache/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_cache {
namespace HWY_NAMESPACE {

// Vectors of words; a word is two bf16, the one of lower index or key in its lower half.
using VU32 = hn::Vec<U32>;

#undef XLA_GPU_HAVE_BF16_DOT
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3
#define XLA_GPU_HAVE_BF16_DOT 1

// Each lane: sum + the products of both halves of a and b. Subnormal bf16 count as 0.
HWY_INLINE VF32 AddProducts(VF32 sum, VU32 a, VU32 b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}

// What the elements of a cache are that are computed with in bf16: T::LoadWords gives kStep of them
// as kWords vectors of words, 8 of each 16 bytes of the cache in the first vector, the next 8 in
// the second; T::LoadPairs kStep of each of two keys, words of both, as 2 * kWords vectors.
template <class T, size_t kVectors>
struct InBF16 {
  static constexpr float kFactor = 1.0f;
  static constexpr bool kDot = true;
  static constexpr size_t kWords = kVectors, kStep = 32 * kWords;
  using D16 = hn::Repartition<uint16_t, U32>;

  // kStep bf16 times `factor`, in the order of LoadWords.
  static HWY_INLINE void ToWords(const uint16_t* from, float factor, uint16_t* to) {
    uint16_t product[kStep];
    for (size_t i = 0; i < kStep; i += kLanes) {
      StoreBF16(hn::Mul(CacheBF16::Load(from + i), hn::Set(F32(), factor)), product + i);
    }
    for (size_t i = 0; i < kStep / 8; ++i) {
      std::memcpy(to + i % kWords * 32 + i / kWords * 8, product + 8 * i, 8 * sizeof(*to));
    }
  }

  // A row of sums over LoadPairs becomes one in the order of the elements; n is a multiple of
  // kStep.
  static HWY_INLINE void ToElementOrder(float* row, size_t n) {
    InSteps(row, n,
            [](float* row, const float* pairs, size_t element, size_t pair)
                XLA_GPU_INLINE_LAMBDA { std::memcpy(row + element, pairs + pair, 16); });
  }

  // The reverse.
  static HWY_INLINE void ToPairOrder(float* row, size_t n) {
    InSteps(row, n,
            [](float* row, const float* elements, size_t element, size_t pair)
                XLA_GPU_INLINE_LAMBDA { std::memcpy(row + pair, elements + element, 16); });
  }

  static HWY_INLINE bool AllFinite(VU32 words) {
    const auto infinity = hn::Set(D16(), 0x7f80);
    const auto exponents = hn::And(hn::BitCast(D16(), words), infinity);
    return hn::AllFalse(D16(), hn::Eq(exponents, infinity));
  }

  // Rounds to nearest even; NaN stays NaN.
  static HWY_INLINE void StoreWeights(VF32 x, uint16_t* to) {
    const hn::Rebind<uint16_t, F32> d16;
    hn::Vec<decltype(d16)> rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded.raw) : "v"(x.raw));
    hn::StoreU(rounded, d16, to);
  }

 private:
  // Calls f(step, copy of the step, place of four elements, their place in pairs).
  template <class F>
  static HWY_INLINE void InSteps(float* row, size_t n, const F& f) {
    for (float* step = row; step != row + n; step += kStep) {
      float copy[kStep];
      std::memcpy(copy, step, sizeof(copy));
      for (size_t i = 0; i < kStep / 4; ++i) {
        f(step, copy, 4 * i, i % (2 * kWords) * 16 + i / (2 * kWords) * 4);
      }
    }
  }
};

struct DotBF16Cache : InBF16<DotBF16Cache, 1> {
  using Raw = uint16_t;
  static HWY_INLINE void LoadWords(const Raw* from, VU32* words) {
    words[0] = hn::BitCast(U32(), hn::LoadU(D16(), from));
  }
  static HWY_INLINE void LoadPairs(const Raw* first, const Raw* second, VU32* pairs) {
    const auto a = hn::LoadU(D16(), first), b = hn::LoadU(D16(), second);
    pairs[0] = hn::BitCast(U32(), hn::InterleaveLower(D16(), a, b));
    pairs[1] = hn::BitCast(U32(), hn::InterleaveUpper(D16(), a, b));
  }
};

// bf16 of the magnitudes of an fp8 type, lower bytes and then upper ones.
template <int kMantissaBits, bool kHasInf>
constexpr std::array<uint8_t, 256> MakeF8Table() {
  std::array<uint8_t, 256> table{};
  constexpr int kBias = (1 << (6 - kMantissaBits)) - 1;
  for (int bits = 0; bits < 128; ++bits) {
    int exponent = bits >> kMantissaBits;
    int mantissa = bits & ((1 << kMantissaBits) - 1);
    int value = 0;
    if (kHasInf ? exponent == 31 : bits == 127) {
      value = kHasInf && mantissa == 0 ? 0x7f80 : 0x7fc0;
    } else if (bits != 0) {
      if (exponent == 0) {
        for (exponent = 1; (mantissa >> kMantissaBits) == 0; --exponent) mantissa *= 2;
      }
      mantissa &= (1 << kMantissaBits) - 1;
      value = (exponent - kBias + 127) << 7 | mantissa << (7 - kMantissaBits);
    }
    table[static_cast<size_t>(bits)] = static_cast<uint8_t>(value & 0xff);
    table[static_cast<size_t>(bits + 128)] = static_cast<uint8_t>(value >> 8);
  }
  return table;
}

// A byte becomes a bf16 by two look-ups.
template <int kMantissaBits, bool kHasInf>
struct DotF8Cache : InBF16<DotF8Cache<kMantissaBits, kHasInf>, 2> {
  using Raw = uint8_t;
  alignas(64) static constexpr std::array<uint8_t, 256> kTable =
      MakeF8Table<kMantissaBits, kHasInf>();

  static HWY_INLINE void LoadWords(const Raw* from, VU32* words) {
    ToBF16(hn::LoadU(D8(), from), words);
  }
  // Interleaved as bytes: after the look-ups it would take more shuffles.
  static HWY_INLINE void LoadPairs(const Raw* first, const Raw* second, VU32* pairs) {
    const auto a = hn::LoadU(D8(), first), b = hn::LoadU(D8(), second);
    ToBF16(hn::InterleaveLower(D8(), a, b), pairs);
    ToBF16(hn::InterleaveUpper(D8(), a, b), pairs + 2);
  }

 private:
  using D8 = hn::Repartition<uint8_t, U32>;

  // Of each 16 bytes the first 8 to the first vector, the others to the second.
  static HWY_INLINE void ToBF16(hn::Vec<D8> bits, VU32* words) {
    const D8 d8;
    const auto lookup = [&](size_t at) XLA_GPU_INLINE_LAMBDA {
      auto found = bits;  // the index becomes the entry
      const auto low = hn::Load(d8, kTable.data() + at),
                 high = hn::Load(d8, kTable.data() + at + 64);
      __asm__("vpermi2b %2, %1, %0" : "+v"(found.raw) : "v"(low.raw), "v"(high.raw));
      return found;
    };
    const auto lower = lookup(0);
    const auto upper = hn::Or(lookup(128), hn::And(bits, hn::Set(d8, 0x80)));
    words[0] = hn::BitCast(U32(), hn::InterleaveLower(d8, lower, upper));
    words[1] = hn::BitCast(U32(), hn::InterleaveUpper(d8, lower, upper));
  }
};
using DotF8E4M3FNCache = DotF8Cache<3, false>;
using DotF8E5M2Cache = DotF8Cache<2, true>;

#else
#define XLA_GPU_HAVE_BF16_DOT 0
#endif  // AVX3

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_cache
HWY_AFTER_NAMESPACE();

#endif  // include guard
