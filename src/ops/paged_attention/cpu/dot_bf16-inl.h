// Dot products of bf16 queries and keys by vdpbf16ps (AVX512_BF16), for decode: half the
// multiplications of the f32 form and no conversions. Its products are exact in f32.
//
// Highway has no target for AVX-512 with just this extension, so the one function that uses it
// carries its own target attribute; who calls it has asked MayUse(kAvx3BF16).
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DOT_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DOT_BF16_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DOT_BF16_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DOT_BF16_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_attention/problem.h"
#include "src/ops/paged_cache/cpu/instruction_set.h"

#undef XLA_GPU_HAVE_BF16_DOT
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3
#define XLA_GPU_HAVE_BF16_DOT 1
#include <immintrin.h>
#else
#define XLA_GPU_HAVE_BF16_DOT 0
#endif

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// Queries are kept as DotBF16 takes them: 32 elements of the first of kHeads rows, the same of the
// second and so on, then the next 32. One pointer walks all of them: more pointers than registers
// would cost as much as the products.
constexpr size_t kDotStep = 32;
inline void StoreDotQuery(const uint16_t* query, size_t head_dim, size_t heads, size_t h,
                          bool negative, uint16_t* to) {
  for (size_t d = 0; d < head_dim; d += kDotStep) {
    uint16_t* const step = to + d * heads + h * kDotStep;
    std::memcpy(step, query + d, kDotStep * sizeof(*to));
    for (size_t i = 0; negative && i < kDotStep; ++i) step[i] ^= 0x8000;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#if XLA_GPU_HAVE_BF16_DOT
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// sums[h * kKeys + j] += the products of query h and key j, for the keys [kBegin, kKeys): few at
// once, as each takes three pointers.
template <size_t kHeads, size_t kKeys, size_t kBegin>
HWY_INLINE void AddDotsBF16(const uint16_t* queries, HeadRows<uint16_t> keys,
                            HeadRows<uint16_t> near, HeadRows<uint16_t> far, size_t head_dim,
                            VF32* sums) {
  constexpr size_t kStep = 8 / kHeads;
  const uint16_t* rows[kStep];
  const uint16_t* near_rows[kStep];
  const uint16_t* far_rows[kStep];
  for (size_t j = 0; j < kStep; ++j) {
    rows[j] = keys[kBegin + j];
    near_rows[j] = near[kBegin + j];
    far_rows[j] = far[kBegin + j];
  }
  const uint16_t* query_at = queries;
  for (size_t d = 0; d < head_dim; d += kDotStep, query_at += kHeads * kDotStep) {
    __m512bh query[kHeads];
    for (size_t h = 0; h < kHeads; ++h) {
      query[h] = (__m512bh)_mm512_loadu_si512(query_at + h * kDotStep);
    }
    for (size_t j = 0; j < kStep; ++j) {
      const __m512bh row = (__m512bh)_mm512_loadu_si512(rows[j] + d);
      __builtin_prefetch(near_rows[j] + d, 0, 2);
      __builtin_prefetch(far_rows[j] + d, 0, 2);
      for (size_t h = 0; h < kHeads; ++h) {
        __m512& sum = sums[h * kKeys + kBegin + j].raw;
        sum = _mm512_dpbf16_ps(sum, query[h], row);
      }
    }
  }
  if constexpr (kBegin + kStep < kKeys) {
    AddDotsBF16<kHeads, kKeys, kBegin + kStep>(queries, keys, near, far, head_dim, sums);
  }
}

// The dot products of kHeads queries and n keys, kKeys = 16 / kHeads of them at a time: element
// h * kKeys + j of each 16 of `to` is that of query h and key j; those of keys past the last are
// undefined, and up to kKeys - 1 rows past it are read. head_dim is a multiple of kDotStep. The
// rows `near` and `far` are brought into L2.
template <size_t kHeads, size_t kKeys>
HWY_NOINLINE void DotBF16(const uint16_t* queries, HeadRows<uint16_t> keys, HeadRows<uint16_t> near,
                          HeadRows<uint16_t> far, size_t head_dim, size_t n, float* to) {
  static_assert(kHeads * kKeys == kLanes);
  for (size_t first = 0; first < n; first += kKeys, to += kLanes) {
    VF32 sums[kLanes];
    for (VF32& sum : sums) sum = hn::Zero(F32());
    AddDotsBF16<kHeads, kKeys, 0>(queries, keys.From(first), near.From(first), far.From(first),
                                  head_dim, sums);
    hn::Store(SumEach(sums), F32(), to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_POP_ATTRIBUTES
#endif  // XLA_GPU_HAVE_BF16_DOT

#endif  // include guard
