// The four functions that Highway's headers expect from libhwy: which SIMD targets this CPU has,
// the one chosen, and aligned memory.
//
// They are here because Debian and Ubuntu ship libhwy as a shared library only: linked to it, a
// wheel would start on no other machine.
#include <hwy/aligned_allocator.h>
#include <hwy/base.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hwy {
namespace {

#if defined(__x86_64__)

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// All zero for a leaf that this CPU does not have.
Registers Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

// Which register files the operating system saves on a context switch.
uint64_t SavedState() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool HasBits(uint32_t value, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((value >> bit & 1) == 0) return false;
  }
  return true;
}

// Each target as Highway defines it: the instruction sets its code may use.
int64_t DetectTargets() {
  const Registers leaf1 = Cpuid(1);
  const Registers leaf7 = Cpuid(7);
  const Registers extended = Cpuid(0x80000001);
  int64_t targets = 0;
#ifdef HWY_SSE2
  targets |= HWY_SSE2;
#endif
  if (!HasBits(leaf1.c, {0, 9})) return targets;  // SSE3, SSSE3
  targets |= HWY_SSSE3;
  if (!HasBits(leaf1.c, {19, 20, 1, 25})) return targets;  // SSE4.1, SSE4.2, PCLMULQDQ, AES
  targets |= HWY_SSE4;

  const uint64_t saved = HasBits(leaf1.c, {27}) ? SavedState() : 0;  // OSXSAVE
  const bool avx2 = HasBits(leaf1.c, {28, 12, 29}) &&                // AVX, FMA, F16C
                    HasBits(leaf7.b, {5, 3, 8}) &&                   // AVX2, BMI1, BMI2
                    HasBits(extended.c, {5});                        // LZCNT
  if (!avx2 || (saved & 0x6) != 0x6) return targets;
  targets |= HWY_AVX2;

  const bool avx512 = HasBits(leaf7.b, {16, 17, 28, 30, 31});  // F, DQ, CD, BW, VL
  if (!avx512 || (saved & 0xe6) != 0xe6) return targets;
  targets |= HWY_AVX3;
  // VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ
  if (!HasBits(leaf7.c, {1, 6, 8, 9, 10, 11, 12, 14})) return targets;
  targets |= HWY_AVX3_DL;
#if defined(HWY_AVX3_ZEN4) || defined(HWY_AVX3_SPR)
  const bool bf16 = leaf7.a >= 1 && HasBits(Cpuid(7, 1).a, {5});
#endif
#ifdef HWY_AVX3_ZEN4
  if (bf16) targets |= HWY_AVX3_ZEN4;
#endif
#ifdef HWY_AVX3_SPR
  if (bf16 && HasBits(leaf7.d, {23})) targets |= HWY_AVX3_SPR;  // AVX512-FP16
#endif
  return targets;
}

#else

// Elsewhere what the compiler was told to assume.
int64_t DetectTargets() { return HWY_STATIC_TARGET; }

#endif

}  // namespace

int64_t SupportedTargets() {
  static const int64_t targets = DetectTargets() | HWY_STATIC_TARGET;
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

// The addresses of xla_gpu's own buffers need no allocator of the caller's: those are null here.
void* AllocateAlignedBytes(size_t size, AllocPtr, void*) {
  const size_t rounded = (size + HWY_ALIGNMENT - 1) / HWY_ALIGNMENT * HWY_ALIGNMENT;
  return rounded < size ? nullptr : std::aligned_alloc(HWY_ALIGNMENT, rounded);
}

void FreeAlignedBytes(const void* memory, FreePtr, void*) { std::free(const_cast<void*>(memory)); }

}  // namespace hwy
