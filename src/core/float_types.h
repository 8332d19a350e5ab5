// Conversions between f32 and the narrow float types, as bits. Round to nearest even; what does not
// fit becomes infinity (f16, bf16, f8e5m2) or saturates where the type has none (f8e4m3fn: 448).
#ifndef XLA_GPU_CORE_FLOAT_TYPES_H_
#define XLA_GPU_CORE_FLOAT_TYPES_H_

#include <cstdint>
#include <span>

#include "src/core/dtype.h"

namespace xla_gpu {

float BF16ToFloat(uint16_t bits);
float F16ToFloat(uint16_t bits);
float F8E4M3FNToFloat(uint8_t bits);
float F8E5M2ToFloat(uint8_t bits);

uint16_t FloatToBF16(float value);
uint16_t FloatToF16(float value);
// Both fp8 conversions saturate finite values to the largest finite one, as a KV cache wants
// (CUDA's __NV_SATFINITE); NaN stays NaN.
uint8_t FloatToF8E4M3FN(float value);
uint8_t FloatToF8E5M2(float value);

// One element of a float tensor (f32, f64, bf16, f16, fp8) as double, and back.
double LoadAsDouble(const void* data, DType dtype, int64_t index);
void StoreFromDouble(void* data, DType dtype, int64_t index, double value);

// The elements from `first` on of a tensor of f32, bf16 or f16 as f32, and back.
void LoadFloats(const void* from, DType dtype, int64_t first, std::span<float> to);
void StoreFloats(std::span<const float> from, void* to, DType dtype, int64_t first);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FLOAT_TYPES_H_
