// grouped_matmul on any GPU, for all types and sizes: products and sums in f32.
//
// Defines: LHS_TYPE, RHS_TYPE, OUT_TYPE; ROWS of a tile: 16 or 64.
#include "src/cuda/numeric.cuh"
#include "src/ops/grouped_matmul/cuda/tiles.cuh"

namespace xla_gpu::grouped_matmul {
namespace {

using Lhs = LHS_TYPE;
using Rhs = RHS_TYPE;
using Out = OUT_TYPE;

constexpr int kInner = 16;  // of a step
constexpr int kColumns = kPortableColumns;
// A thread has rows thread / 16 + 16 * i and columns 4 * (thread % 16) to + 3 of a tile.
constexpr int kThreadRows = ROWS / 16;

struct Shared {
  float lhs[ROWS][kInner + 1];
  float rhs[kInner][kColumns];
};

}  // namespace

// Blocks take tiles in turn.
extern "C" __global__ void __launch_bounds__(kPortableThreads)
    grouped_matmul(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  const int thread = threadIdx.x, row0 = thread / 16, column0 = thread % 16 * 4;
  const int block_inner = p.inner / max(p.scale_blocks, 1);  // with one scale
  Tiles<ROWS, kColumns> tiles(p);
  Tile tile;
  for (long long number = blockIdx.x; tiles.Find(number, tile); number += gridDim.x) {
    const Lhs* const lhs =
        static_cast<const Lhs*>(p.lhs) + static_cast<long long>(tile.row) * p.inner;
    const Rhs* const rhs = static_cast<const Rhs*>(p.rhs) +
                           static_cast<long long>(tile.group) * p.inner * p.columns + tile.column;
    const float* const scales =
        p.rhs_scale == nullptr
            ? nullptr
            : p.rhs_scale + static_cast<long long>(tile.group) * p.scale_blocks * p.columns +
                  tile.column;
    const int columns = min(p.columns - tile.column, kColumns);
    float sums[kThreadRows][4] = {}, of_block[kThreadRows][4] = {};
    for (int block = 0; block < max(p.scale_blocks, 1); ++block) {
      for (int k0 = block * block_inner; k0 < (block + 1) * block_inner; k0 += kInner) {
        const int steps = min((block + 1) * block_inner - k0, kInner);
        __syncthreads();
        for (int i = thread; i < ROWS * kInner; i += kPortableThreads) {
          const int row = i / kInner, k = i % kInner;
          shared.lhs[row][k] = row < tile.rows && k < steps
                                   ? ToFloat(lhs[static_cast<long long>(row) * p.inner + k0 + k])
                                   : 0.0f;
        }
        for (int i = thread; i < kInner * kColumns; i += kPortableThreads) {
          const int k = i / kColumns, column = i % kColumns;
          shared.rhs[k][column] =
              k < steps && column < columns
                  ? ToFloat(rhs[static_cast<long long>(k0 + k) * p.columns + column])
                  : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kInner; ++k) {
          const float4 b = *reinterpret_cast<const float4*>(&shared.rhs[k][column0]);
#pragma unroll
          for (int i = 0; i < kThreadRows; ++i) {
            const float a = shared.lhs[row0 + 16 * i][k];
            of_block[i][0] += a * b.x, of_block[i][1] += a * b.y;
            of_block[i][2] += a * b.z, of_block[i][3] += a * b.w;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float scale = 1.0f;
        if (scales != nullptr && column0 + j < columns) {
          scale = scales[static_cast<long long>(block) * p.columns + column0 + j];
        }
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          sums[i][j] = scales == nullptr ? of_block[i][j] : fmaf(of_block[i][j], scale, sums[i][j]);
          of_block[i][j] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int row = row0 + 16 * i;
      if (row >= tile.rows) continue;
      Out* const out = static_cast<Out*>(p.out) +
                       static_cast<long long>(tile.row + row) * p.columns + tile.column + column0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column0 + j < columns) out[j] = FromFloat<Out>(sums[i][j]);
      }
    }
  }
  ZeroRowsFrom<Out>(p, tiles.TotalRows(), blockIdx.x * kPortableThreads + thread,
                    static_cast<long long>(gridDim.x) * kPortableThreads);
}

}  // namespace xla_gpu::grouped_matmul
