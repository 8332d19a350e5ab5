#include "src/ops/update_kv_cache/cpu/kernels.h"

#include "src/ops/paged_cache/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/update_kv_cache/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/ops/update_kv_cache/cpu/convert-inl.h"

#if HWY_ONCE
namespace xla_gpu::update_kv_cache {

void ConvertRow(const RowConversion& task) { XLA_GPU_HOST_DISPATCH(ConvertRow)(task); }

}  // namespace xla_gpu::update_kv_cache
#endif  // HWY_ONCE
