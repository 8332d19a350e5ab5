// Which instruction sets the Host kernels are compiled for. Include first in a file that includes
// hwy/foreach_target.h.
//
// The baseline, AVX2 and AVX-512 on x86, NEON on Arm: those between would add code but no speed.
// Vectors of unknown size (SVE, RVV) cannot be held in the arrays used here.
#ifndef XLA_GPU_OPS_PAGED_CACHE_CPU_TARGETS_H_
#define XLA_GPU_OPS_PAGED_CACHE_CPU_TARGETS_H_

// Expanded where it is used, when the names that the installed Highway knows are defined.
#define HWY_DISABLED_TARGETS                                                                \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | \
   HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#if !defined(__x86_64__) && !defined(HWY_COMPILE_ONLY_STATIC)
#define HWY_COMPILE_ONLY_STATIC  // newer Highways have further forms of NEON, for AES and bf16
#endif
#include "hwy/detect_targets.h"
#ifndef HWY_AVX3_ZEN4  // Highway before 1.0.5
#define HWY_AVX3_ZEN4 0
#define HWY_AVX3_SPR 0
#endif

#include "src/ops/paged_cache/cpu/instruction_set.h"

// In the once-only part of such a file: a pointer to the compiled form of `function` that this
// machine runs fastest. Highway's own dispatch would need its shared library at run time, which the
// distributions have in no static form; its headers are all that is used.
#define XLA_GPU_HOST_DISPATCH(function)                                   \
  ::xla_gpu::ChooseTarget(XLA_GPU_AVX3(function), XLA_GPU_AVX2(function), \
                          &HWY_STATIC_DISPATCH(function))
// Compiled only where Highway attains the target; null elsewhere.
#define XLA_GPU_AVX3(function) XLA_GPU_IF_TARGET(XLA_GPU_HAS_AVX3, &N_AVX3::function)
#define XLA_GPU_AVX2(function) XLA_GPU_IF_TARGET(XLA_GPU_HAS_AVX2, &N_AVX2::function)
#define XLA_GPU_IF_TARGET(has, pointer) XLA_GPU_CONCAT_TARGET(XLA_GPU_IF_, has)(pointer)
#define XLA_GPU_CONCAT_TARGET(a, b) XLA_GPU_CONCAT_TARGET_INNER(a, b)
#define XLA_GPU_CONCAT_TARGET_INNER(a, b) a##b
#define XLA_GPU_IF_1(pointer) pointer
#define XLA_GPU_IF_0(pointer) nullptr
#if (HWY_TARGETS & HWY_AVX3) && (HWY_TARGETS != HWY_STATIC_TARGET)
#define XLA_GPU_HAS_AVX3 1
#else
#define XLA_GPU_HAS_AVX3 0
#endif
#if (HWY_TARGETS & HWY_AVX2) && (HWY_TARGETS != HWY_STATIC_TARGET)
#define XLA_GPU_HAS_AVX2 1
#else
#define XLA_GPU_HAS_AVX2 0
#endif

#endif  // XLA_GPU_OPS_PAGED_CACHE_CPU_TARGETS_H_
