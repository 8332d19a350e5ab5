// Which of the compiled forms of a Host kernel this machine can run.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_

#include <atomic>

namespace xla_gpu {

// Highway's targets that the kernels are compiled for, and AVX3 with AVX512_BF16; each includes
// those before it.
enum class InstructionSet : int { kBaseline, kAvx2, kAvx3, kAvx3BF16 };

// What this processor and its operating system have. F16C and LZCNT, which Highway's AVX2 also
// means, are on every processor that has the rest.
inline InstructionSet BestInstructionSet() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (!avx2) return InstructionSet::kBaseline;
  const bool avx3 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  if (!avx3) return InstructionSet::kAvx2;
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx3BF16 : InstructionSet::kAvx3;
#else
  return InstructionSet::kBaseline;
#endif
}

// The one in use: the best, unless a test asks for less.
inline std::atomic<InstructionSet> instruction_set_in_use{BestInstructionSet()};

inline bool MayUse(InstructionSet set) {
  return instruction_set_in_use.load(std::memory_order_relaxed) >= set;
}

// The best form that exists (is not null) and may be used.
template <typename Function>
Function* ChooseForm(Function* avx3, Function* avx2, Function* baseline) {
  if (avx3 != nullptr && MayUse(InstructionSet::kAvx3)) return avx3;
  if (avx2 != nullptr && MayUse(InstructionSet::kAvx2)) return avx2;
  return baseline;
}

// As ChooseForm, where a form that does not exist is a nullptr literal.
template <typename Avx3, typename Avx2, typename Function>
Function* ChooseTarget(Avx3 avx3, Avx2 avx2, Function* baseline) {
  return ChooseForm<Function>(avx3, avx2, baseline);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_
