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

// The Hopper kernel: a tile is some rows by panels of columns; a stage holds kStageInner of the
// inner dimension. All in 128-byte rows, swizzled.
namespace sm90 {
inline constexpr int kStageInner = 64;
inline constexpr int kPanelBytes = 128 * kStageInner;  // of rhs
constexpr int PanelColumns(int element_bytes) { return 128 / element_bytes; }
inline constexpr int kAlignment = 1024;  // of panels

constexpr int StageBytes(int rows, int panels) {
  return panels * kPanelBytes + rows * kStageInner * 2;
}
// Of a pair of blocks: half a tile's sums, from the other block, and two barriers.
constexpr int ExchangeBytes(int rows, int columns, int splits) {
  return splits == 1 ? 0 : rows * columns / 2 * 4 + 2 * 8;
}
constexpr int SharedBytes(int rows, int panels, int panel_columns, int stages, int splits) {
  return kAlignment + stages * (StageBytes(rows, panels) + 2 * 8) +
         ExchangeBytes(rows, panels * panel_columns, splits);
}
// Where one block has a multiprocessor, a whole warpgroup loads: it leaves the others its
// registers.
constexpr int Threads(int groups, int blocks) { return groups * 128 + (blocks == 1 ? 128 : 32); }
}  // namespace sm90

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CUDA_PARAMS_CUH_
