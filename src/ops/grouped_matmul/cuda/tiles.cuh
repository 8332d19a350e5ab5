// The tiles of a grouped product, which depend on sizes that only the device knows.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_CUDA_TILES_CUH_
#define XLA_GPU_OPS_GROUPED_MATMUL_CUDA_TILES_CUH_

#include "src/ops/grouped_matmul/cuda/params.cuh"

namespace xla_gpu::grouped_matmul {

struct Tile {
  int group;
  int row;     // the first
  int rows;    // 1 to kRows
  int column;  // the first
};

// Finds tiles by their numbers, which must ascend; all lanes of a warp. A lane has one of 32
// groups.
template <int kRows, int kColumns>
class Tiles {
 public:
  __device__ __forceinline__ explicit Tiles(const Params& p)
      : p_(p), column_tiles_((p.columns + kColumns - 1) / kColumns) {
    Load();
  }

  // False past the last.
  __device__ __forceinline__ bool Find(long long number, Tile& tile) {
    long long all;
    while (number >= (all = __shfl_sync(~0u, tiles_end_, 31))) {
      if (first_ + 32 >= p_.groups) return false;
      first_ += 32;
      tiles_ = all;
      rows_ = __shfl_sync(~0u, row_end_, 31);
      Load();
    }
    const int lane = __ffs(__ballot_sync(~0u, number < tiles_end_)) - 1;
    const int begin = __shfl_sync(~0u, row_begin_, lane), end = __shfl_sync(~0u, row_end_, lane);
    const long long before = lane == 0 ? tiles_ : __shfl_sync(~0u, tiles_end_, max(lane - 1, 0));
    const long long in_group = number - before;
    // Rows first: tiles that are computed at once share columns of a matrix too large for the L2.
    const int row_tiles = (end - begin + kRows - 1) / kRows;
    const int column_tile = static_cast<int>(in_group / row_tiles);
    tile.group = first_ + lane;
    tile.row = begin +
               static_cast<int>(in_group - static_cast<long long>(column_tile) * row_tiles) * kRows;
    tile.rows = min(end - tile.row, kRows);
    tile.column = column_tile * kColumns;
    return true;
  }

  // The rows of all groups, once Find was false.
  __device__ __forceinline__ int TotalRows() const { return __shfl_sync(~0u, row_end_, 31); }

 private:
  __device__ __forceinline__ void Load() {
    const int lane = threadIdx.x % 32, group = first_ + lane;
    const int size = group < p_.groups ? max(p_.group_sizes[group], 0) : 0;
    row_end_ = static_cast<int>(min(rows_ + SumUpTo(size, lane), static_cast<long long>(p_.rows)));
    const int previous = __shfl_up_sync(~0u, row_end_, 1);
    row_begin_ = lane == 0 ? rows_ : previous;
    const int row_tiles = (row_end_ - row_begin_ + kRows - 1) / kRows;
    tiles_end_ = tiles_ + SumUpTo(static_cast<long long>(row_tiles) * column_tiles_, lane);
  }

  // Of this lane and those before it.
  static __device__ __forceinline__ long long SumUpTo(long long x, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const long long other = __shfl_up_sync(~0u, x, step);
      if (lane >= step) x += other;
    }
    return x;
  }

  const Params& p_;
  const int column_tiles_;
  int first_ = 0;        // group of lane 0
  int rows_ = 0;         // of the groups before it
  long long tiles_ = 0;  // of them
  int row_begin_, row_end_;
  long long tiles_end_;
};

// Rows of no group become 0; thread `thread` of `threads` that do it in all.
template <typename Out>
__device__ __forceinline__ void ZeroRowsFrom(const Params& p, int row, long long thread,
                                             long long threads) {
  const long long end = static_cast<long long>(p.rows) * p.columns;
  for (long long i = static_cast<long long>(row) * p.columns + thread; i < end; i += threads) {
    static_cast<Out*>(p.out)[i] = FromFloat<Out>(0.0f);
  }
}

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_CUDA_TILES_CUH_
