// The Host kernel of grouped_matmul, compiled for several instruction sets (kernels.cc).
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_CPU_KERNELS_H_
#define XLA_GPU_OPS_GROUPED_MATMUL_CPU_KERNELS_H_

#include <cstdint>

#include "src/core/dtype.h"

namespace xla_gpu::grouped_matmul {

// A tile of a product: some rows of one group by some columns of its matrix.
struct TileTask {
  DType lhs_dtype, rhs_dtype, out_dtype;
  const void* lhs;  // the tile's first row, [rows, inner]
  int64_t rows;     // at most kTileRows
  int64_t inner;
  const void* rhs;     // the group's matrix from the tile's first column on, [inner, columns]
  int64_t columns;     // at most kTileColumns
  int64_t row_stride;  // elements of a row of rhs, rhs_scale and out
  const float* scale;  // [blocks, columns], as rhs; null: none
  int64_t blocks;      // of inner, at least 1
  void* out;           // the tile's first element, [rows, columns]
};
inline constexpr int64_t kTileRows = 48, kTileColumns = 256;
void MultiplyTile(const TileTask& task);

// Memory of this thread, at least n floats on a cache line, until the next call.
float* ThreadScratch(int64_t n);

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CPU_KERNELS_H_
