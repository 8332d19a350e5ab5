// For tests: what AMX's products give, by the manual's own loops, on any processor.
#ifndef XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_EMULATED_H_
#define XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_EMULATED_H_

#include <cmath>
#include <cstring>
#include <limits>

#include "src/ops/paged_cache/cpu/amx.h"

namespace xla_gpu::paged_cache {

inline float FlushSubnormal(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// The lower or upper bf16 of a word; subnormal ones are 0.
inline float HalfOfWord(const float* word, int half) {
  uint32_t bits;
  std::memcpy(&bits, word, sizeof(bits));
  bits = half == 0 ? bits << 16 : bits & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return FlushSubnormal(value);
}

// TDPBF16PS over the tiles of a product.
inline void MultiplyEmulated(const AmxProduct& p) {
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t j = 0; j < p.cols; ++j) {
      float sum = p.adds ? p.c[i * p.ldc + j] : 0.0f;
      for (int64_t tile = 0; tile < p.depth; tile += kAmxWords) {
        float halves[2] = {};
        for (int64_t k = tile; k < tile + kAmxWords; ++k) {
          for (int half = 0; half < 2; ++half) {
            halves[half] =
                FlushSubnormal(std::fma(HalfOfWord(p.a + i * p.lda + k, half),
                                        HalfOfWord(p.b + k * p.ldb + j, half), halves[half]));
          }
        }
        sum = FlushSubnormal(sum + FlushSubnormal(halves[0] + halves[1]));
      }
      p.c[i * p.ldc + j] = sum;
    }
  }
}

inline constexpr AmxUnit kEmulatedAmx{[] { return true; }, [](int64_t) {}, &MultiplyEmulated,
                                      [] {}};

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_EMULATED_H_
