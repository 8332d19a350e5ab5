#include "src/ops/grouped_matmul/cpu/kernels.h"

#include "src/ops/paged_cache/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/grouped_matmul/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/ops/grouped_matmul/cpu/tile-inl.h"

#if HWY_ONCE
#include <vector>

namespace xla_gpu::grouped_matmul {

void MultiplyTile(const TileTask& task) { XLA_GPU_HOST_DISPATCH(MultiplyTile)(task); }

float* ThreadScratch(int64_t n) {
  struct alignas(64) Line {
    float lanes[16];
  };
  static thread_local std::vector<Line> memory;
  const auto lines = static_cast<size_t>(n + 15) / 16;
  if (memory.size() < lines) memory.resize(lines);
  return memory.data()->lanes;
}

}  // namespace xla_gpu::grouped_matmul
#endif  // HWY_ONCE
