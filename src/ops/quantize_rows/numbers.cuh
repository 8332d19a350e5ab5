// The numbers of quantize_rows that Host and device code share.
#ifndef XLA_GPU_OPS_QUANTIZE_ROWS_NUMBERS_CUH_
#define XLA_GPU_OPS_QUANTIZE_ROWS_NUMBERS_CUH_

namespace xla_gpu::quantize_rows {

// The largest finite f8e4m3fn number, which the largest of a row becomes.
inline constexpr float kLargest = 448.0f;
// The least scale, that of a row of zeros: the least normal f32 number.
inline constexpr float kLeastScale = 0x1p-126f;
// Elements that a thread of the kernel has in registers, at most; else it reads them again.
inline constexpr int kMostKept = 32;

}  // namespace xla_gpu::quantize_rows

#endif  // XLA_GPU_OPS_QUANTIZE_ROWS_NUMBERS_CUH_
