// Which of the compiled forms of a Host kernel this machine can run, and what it is.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_INSTRUCTION_SET_H_

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>

namespace xla_gpu {

// Highway's targets that the kernels are compiled for, AVX3 with AVX512_BF16 and AVX512_VBMI, and
// that with AMX_BF16 (amx.h: the system has a word in it too); each includes those before it.
enum class InstructionSet : int { kBaseline, kAvx2, kAvx3, kAvx3BF16, kAmx };

// What this processor and its operating system have. F16C and LZCNT, which Highway's AVX2 also
// means, are on every processor that has the rest. CPUID itself is asked: __builtin_cpu_supports is
// the compiler's runtime library, and zig's, with which the wheel is built, answers no to all.
inline InstructionSet BestInstructionSet() {
#if defined(__x86_64__)
  constexpr unsigned kCpu = bit_FMA | bit_OSXSAVE | bit_AVX;
  constexpr unsigned kAvx2 = bit_AVX2 | bit_BMI | bit_BMI2;
  constexpr unsigned kAvx3 =
      bit_AVX512F | bit_AVX512CD | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  constexpr unsigned kAmx = 1u << 22 | 1u << 24;  // AMX_BF16, AMX_TILE
  // Registers that the system saves: XCR0.
  constexpr unsigned kSavedYmm = 0x06, kSavedZmm = 0xe6, kSavedTiles = 0x60000;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & kCpu) != kCpu) {
    return InstructionSet::kBaseline;
  }
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if ((saved & kSavedYmm) != kSavedYmm || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) ||
      (ebx & kAvx2) != kAvx2) {
    return InstructionSet::kBaseline;
  }
  if ((saved & kSavedZmm) != kSavedZmm || (ebx & kAvx3) != kAvx3) return InstructionSet::kAvx2;
  const bool has_vbmi = (ecx & bit_AVX512VBMI) != 0;
  const bool has_amx = (edx & kAmx) == kAmx && (saved & kSavedTiles) == kSavedTiles;
  const unsigned last_subleaf = eax;
  if (last_subleaf == 0 || !has_vbmi) return InstructionSet::kAvx3;
  __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx);
  if ((eax & bit_AVX512BF16) == 0) return InstructionSet::kAvx3;
  return has_amx ? InstructionSet::kAmx : InstructionSet::kAvx3BF16;
#else
  return InstructionSet::kBaseline;
#endif
}

// The one to take. Intel's vdpbf16ps takes two cycles, in which two FMA units do as many products
// of f32 twice: without AMX these are faster.
inline InstructionSet FastestInstructionSet() {
  const InstructionSet best = BestInstructionSet();
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  if (best == InstructionSet::kAvx3BF16 && __get_cpuid(0, &eax, &ebx, &ecx, &edx) &&
      ebx == signature_INTEL_ebx) {
    return InstructionSet::kAvx3;
  }
#endif
  return best;
}

// AMD's family 26.
inline bool IsZen5() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ebx != signature_AMD_ebx ||
      !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    return false;
  }
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) == 26;
#else
  return false;
#endif
}
inline const bool is_zen5 = IsZen5();

// The one in use: the fastest, unless a test asks for another.
inline std::atomic<InstructionSet> instruction_set_in_use{FastestInstructionSet()};

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
