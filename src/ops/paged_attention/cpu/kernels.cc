#include "src/ops/paged_attention/cpu/kernels.h"

#include "src/ops/paged_attention/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/paged_attention/cpu/kernels.cc"
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
