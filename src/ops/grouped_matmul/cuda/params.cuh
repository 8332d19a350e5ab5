// What the Host hands to the grouped_matmul kernels. Included by Host and device code.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_CUDA_PARAMS_CUH_
#define XLA_GPU_OPS_GROUPED_MATMUL_CUDA_PARAMS_CUH_

namespace xla_gpu::grouped_matmul {

struct Params {
  const void* lhs;         // [rows, inner]
  const void* rhs;         // [groups, inner, columns]
  const int* group_sizes;  // [groups]
  const float* rhs_scale;  // [groups, scale_blocks, columns]; null: none
  void* out;               // [rows, columns]
  int rows;
  int inner;
  int columns;
  int groups;
  int scale_blocks;
};

inline constexpr int kPortableThreads = 256;
inline constexpr int kPortableColumns = 64;  // of a tile of the portable kernel

// The Hopper kernel: a tile is `rows` rows by 64 columns for each warpgroup that computes; a stage
// holds kStageInner of the inner dimension. All in 128-byte rows, swizzled.
namespace sm90 {
inline constexpr int kStageInner = 64;
inline constexpr int kPanelBytes = 64 * kStageInner * 2;  // of rhs: 64 columns
inline constexpr int kAlignment = 1024;                   // of panels

constexpr int StageBytes(int rows, int groups) {
  return groups * kPanelBytes + rows * kStageInner * 2;
}
constexpr int SharedBytes(int rows, int groups, int stages) {
  return kAlignment + stages * StageBytes(rows, groups) + stages * 2 * 8;
}
constexpr int Threads(int groups) { return groups * 128 + 32; }
}  // namespace sm90

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CUDA_PARAMS_CUH_
