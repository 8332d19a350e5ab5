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
#include "src/ops/paged_attention/cpu/instruction_set.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_attention/problem.h"

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
                          uint16_t* to) {
  for (size_t d = 0; d < head_dim; d += kDotStep) {
    std::memcpy(to + d * heads + h * kDotStep, query + d, kDotStep * sizeof(*to));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#if XLA_GPU_HAVE_BF16_DOT
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// Lane h * kKeys + j is the dot product of query h and keys[j], for kHeads * kKeys = 16 of them;
// head_dim is a multiple of kDotStep. The rows `near` and `far` are brought into L2.
template <size_t kHeads, size_t kKeys>
HWY_NOINLINE VF32 DotBF16(const uint16_t* queries, HeadRows<uint16_t> keys, HeadRows<uint16_t> near,
                          HeadRows<uint16_t> far, size_t head_dim) {
  static_assert(kHeads * kKeys == kLanes);
  VF32 sums[kLanes];
  for (VF32& sum : sums) sum = hn::Zero(F32());
  for (size_t d = 0; d < head_dim; d += kDotStep, queries += kHeads * kDotStep) {
    __m512bh query[kHeads];
    for (size_t h = 0; h < kHeads; ++h) {
      query[h] = (__m512bh)_mm512_loadu_si512(queries + h * kDotStep);
    }
    for (size_t j = 0; j < kKeys; ++j) {
      const __m512bh row = (__m512bh)_mm512_loadu_si512(keys[j] + d);
      __builtin_prefetch(near[j] + d, 0, 2);
      __builtin_prefetch(far[j] + d, 0, 2);
      for (size_t h = 0; h < kHeads; ++h) {
        __m512& sum = sums[h * kKeys + j].raw;
        sum = _mm512_dpbf16_ps(sum, query[h], row);
      }
    }
  }
  return SumEach(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_POP_ATTRIBUTES
#endif  // XLA_GPU_HAVE_BF16_DOT

#endif  // include guard
