#include "src/ops/paged_cache/cpu/instruction_set.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace xla_gpu {
namespace {

#if defined(__x86_64__)
TEST(InstructionSet, IsWhatTheCompilersLibrarySays) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 =
      avx3 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  // The library does not know AMX before GCC 13.
  EXPECT_EQ(std::min(BestInstructionSet(), InstructionSet::kAvx3BF16),
            bf16   ? InstructionSet::kAvx3BF16
            : avx3 ? InstructionSet::kAvx3
            : avx2 ? InstructionSet::kAvx2
                   : InstructionSet::kBaseline);
}
#endif

}  // namespace
}  // namespace xla_gpu
