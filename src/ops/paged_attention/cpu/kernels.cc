#include "src/ops/paged_attention/cpu/kernels.h"

// The baseline, AVX2 and AVX-512 on x86, NEON on Arm: those between would add code but no speed.
// Vectors of unknown size (SVE, RVV) cannot be held in the arrays used here. The macro is expanded
// where it is used, when the names that this Highway knows are defined.
#define HWY_DISABLED_TARGETS                                                                \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | \
   HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/paged_attention/cpu/kernels.cc"
#include "hwy/detect_targets.h"
#ifndef HWY_AVX3_ZEN4  // Highway before 1.0.5
#define HWY_AVX3_ZEN4 0
#define HWY_AVX3_SPR 0
#endif
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/ops/paged_attention/cpu/decode-inl.h"
#include "src/ops/paged_attention/cpu/prefill-inl.h"

#if HWY_ONCE
#include <memory>

#include "hwy/aligned_allocator.h"

namespace xla_gpu::paged_attention {

HWY_EXPORT(DecodeSplit);
HWY_EXPORT(MergeRow);
HWY_EXPORT(PrefillBlock);

void DecodeSplit(const DecodeTask& task) { HWY_DYNAMIC_DISPATCH(DecodeSplit)(task); }
void MergeRow(const MergeTask& task, int64_t row) { HWY_DYNAMIC_DISPATCH(MergeRow)(task, row); }
void PrefillBlock(const PrefillTask& task) { HWY_DYNAMIC_DISPATCH(PrefillBlock)(task); }

float* ThreadScratch(ScratchSlot slot, int64_t n) {
  struct Buffer {
    hwy::AlignedFreeUniquePtr<float[]> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffers[static_cast<int>(ScratchSlot::kCount)];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (buffer.size < n) {
    buffer.data = hwy::AllocateAligned<float>(n);
    buffer.size = n;
  }
  return buffer.data.get();
}

}  // namespace xla_gpu::paged_attention
#endif  // HWY_ONCE
