// For tests: runs the Host kernels of every instruction set that they are compiled for and this
// processor has, not the best one alone.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_FOR_EACH_TARGET_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_FOR_EACH_TARGET_H_

#include "src/ops/paged_attention/cpu/targets.h"
// After targets.h:
#include "hwy/targets.h"

namespace xla_gpu::paged_attention {

template <class Test>
void ForEachTarget(const Test& test) {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t target : {int64_t{HWY_AVX3}, int64_t{HWY_AVX2}, int64_t{HWY_STATIC_TARGET}}) {
    if ((supported & target) == 0 && target != int64_t{HWY_STATIC_TARGET}) continue;
    hwy::SetSupportedTargetsForTest(target | HWY_STATIC_TARGET);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    test(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_FOR_EACH_TARGET_H_
