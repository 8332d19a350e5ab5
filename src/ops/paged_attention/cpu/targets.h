// Which instruction sets the Host kernels are compiled for. Include first in a file that includes
// hwy/foreach_target.h.
//
// The baseline, AVX2 and AVX-512 on x86, NEON on Arm: those between would add code but no speed.
// Vectors of unknown size (SVE, RVV) cannot be held in the arrays used here.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_TARGETS_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_TARGETS_H_

// Expanded where it is used, when the names that the installed Highway knows are defined.
#define HWY_DISABLED_TARGETS                                                                \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | \
   HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#include "hwy/detect_targets.h"
#ifndef HWY_AVX3_ZEN4  // Highway before 1.0.5
#define HWY_AVX3_ZEN4 0
#define HWY_AVX3_SPR 0
#endif

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_TARGETS_H_
