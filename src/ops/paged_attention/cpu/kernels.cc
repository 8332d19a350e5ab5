#include "src/ops/paged_attention/cpu/kernels.h"

#include "src/ops/paged_cache/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/paged_attention/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/ops/paged_attention/cpu/decode-inl.h"
#include "src/ops/paged_attention/cpu/prefill-inl.h"

#if HWY_ONCE
#include <memory>
#include <new>

namespace xla_gpu::paged_attention {

void DecodeSplit(const DecodeTask& task) { XLA_GPU_HOST_DISPATCH(DecodeSplit)(task); }
void MergeHead(const MergeTask& task, int64_t kv_head) {
  XLA_GPU_HOST_DISPATCH(MergeHead)(task, kv_head);
}
void PrefillBlock(const PrefillTask& task) { XLA_GPU_HOST_DISPATCH(PrefillBlock)(task); }

// Of two vectors of AVX-512, so that hardware prefetch of line pairs helps too.
constexpr std::align_val_t kScratchAlignment{128};
struct AlignedDelete {
  void operator()(float* data) const { ::operator delete[](data, kScratchAlignment); }
};

float* ThreadScratch(ScratchSlot slot, int64_t n) {
  struct Buffer {
    std::unique_ptr<float[], AlignedDelete> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffers[static_cast<int>(ScratchSlot::kCount)];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (buffer.size < n) {
    buffer.data.reset(new (kScratchAlignment) float[static_cast<size_t>(n)]);
    buffer.size = n;
  }
  return buffer.data.get();
}

}  // namespace xla_gpu::paged_attention
#endif  // HWY_ONCE
