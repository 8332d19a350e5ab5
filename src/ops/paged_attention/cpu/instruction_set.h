// Which of the compiled forms of a Host kernel this machine can run.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_

#include <cstddef>

namespace xla_gpu {

// What Highway's targets AVX3 and AVX2 ask of a processor and its operating system. F16C and LZCNT,
// which AVX2 also means there, are on every processor that has the rest.
inline bool HasAvx3() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

inline bool HasAvx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

// The best of the forms that exist (are not null) and run here.
template <typename Function>
Function* Choose(Function* avx3, Function* avx2, Function* baseline) {
  static const bool has_avx3 = HasAvx3(), has_avx2 = HasAvx2();
  if (avx3 != nullptr && has_avx3) return avx3;
  if (avx2 != nullptr && has_avx2) return avx2;
  return baseline;
}

// As Choose, where a missing form is a nullptr literal.
template <typename Avx3, typename Avx2, typename Function>
Function* ChooseTarget(Avx3 avx3, Avx2 avx2, Function* baseline) {
  return Choose<Function>(avx3, avx2, baseline);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_
