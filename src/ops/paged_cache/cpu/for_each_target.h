// For tests: runs the Host kernels of every instruction set that they are compiled for and this
// processor has, not the best one alone.
#ifndef XLA_GPU_OPS_PAGED_CACHE_CPU_FOR_EACH_TARGET_H_
#define XLA_GPU_OPS_PAGED_CACHE_CPU_FOR_EACH_TARGET_H_

#include "src/ops/paged_cache/cpu/amx_emulated.h"
#include "src/ops/paged_cache/cpu/instruction_set.h"

namespace xla_gpu {

// Calls test("AMX"), test("AVX3 with BF16"), test("AVX3"), test("AVX2") and test("baseline"), as
// far as there are such; where AMX alone is missing, its products are emulated.
template <class Test>
void ForEachTarget(const Test& test) {
  const char* names[] = {"baseline", "AVX2", "AVX3", "AVX3 with BF16", "AMX"};
  const InstructionSet best = BestInstructionSet();
  instruction_set_in_use = InstructionSet::kAmx;
  if (best == InstructionSet::kAvx3BF16 ||
      (best == InstructionSet::kAmx && paged_cache::UsableAmx() == nullptr)) {
    paged_cache::amx_in_use = &paged_cache::kEmulatedAmx;
    test("AMX, emulated");
    paged_cache::amx_in_use = &paged_cache::kProcessorsAmx;
  }
  for (int set = static_cast<int>(best); set >= 0; --set) {
    instruction_set_in_use = static_cast<InstructionSet>(set);
    test(names[set]);
  }
  instruction_set_in_use = FastestInstructionSet();
}

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_CACHE_CPU_FOR_EACH_TARGET_H_
