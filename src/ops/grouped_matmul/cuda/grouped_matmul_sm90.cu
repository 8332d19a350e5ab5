// grouped_matmul on Hopper, bf16 and f16: the transposed product of a tile, columns of rhs by rows
// of lhs, so that a group of a few rows costs little more than reading its matrix.
//
// A warp copies tiles of both by the tensor copy engine, stages ahead; each of GROUPS warpgroups
// multiplies PANELS times 64 columns by the tile's rows. Blocks take tiles in turn.
//
// Defines: LHS_TYPE (that of rhs too), OUT_TYPE; ROWS of a tile; GROUPS, PANELS, STAGES; BLOCKS
// that share a multiprocessor.
#include "src/cuda/ptx_sm90.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/cuda/wgmma.cuh"
#include "src/ops/grouped_matmul/cuda/tiles.cuh"

namespace xla_gpu::grouped_matmul::sm90 {
namespace {

using Element = LHS_TYPE;
using Out = OUT_TYPE;

constexpr int kAllPanels = GROUPS * PANELS;
constexpr int kColumns = 64 * kAllPanels;
constexpr int kEightRows = 1024;  // bytes of eight rows of a panel

struct Stage {
  char rhs[kAllPanels][kPanelBytes];  // rows along the columns of rhs
  char lhs[ROWS * kStageInner * 2];   // rows along the inner dimension
};
static_assert(sizeof(Stage) == StageBytes(ROWS, kAllPanels));

struct Shared {
  Stage stages[STAGES];
  unsigned long long full[STAGES];   // its bytes are there
  unsigned long long empty[STAGES];  // all warps have read it
};
static_assert(sizeof(Shared) + kAlignment == SharedBytes(ROWS, kAllPanels, STAGES));

// A stage, and the parity of its phases.
struct Place {
  __device__ __forceinline__ void Next() {
    if (++index == STAGES) index = 0, parity ^= 1;
  }
  int index = 0;
  unsigned parity = 0;
};

using TileList = Tiles<ROWS, kColumns>;

__device__ __forceinline__ void Load(const Params& p, const TensorMap& lhs, const TensorMap& rhs,
                                     Shared& shared) {
  TileList tiles(p);
  Tile tile;
  Place at;
  for (long long number = blockIdx.x; tiles.Find(number, tile); number += gridDim.x) {
    if (threadIdx.x % 32 == 0) {
      for (int k = 0; k < p.inner; k += kStageInner, at.Next()) {
        Stage& stage = shared.stages[at.index];
        const unsigned full = SharedAddress(&shared.full[at.index]);
        Wait(SharedAddress(&shared.empty[at.index]), at.parity ^ 1);
        ArriveExpecting(full, sizeof(Stage));
#pragma unroll
        for (int i = 0; i < kAllPanels; ++i) {
          CopyBox(SharedAddress(stage.rhs[i]), &rhs, full, tile.column + i * 64, k, tile.group, 0,
                  0);
        }
        CopyBox(SharedAddress(stage.lhs), &lhs, full, k, tile.row, 0, 0, 0);
      }
    }
    __syncwarp();
  }
}

__device__ __forceinline__ void Multiply(const Params& p, Shared& shared) {
  constexpr int kTiles = ROWS / 8;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  TileList tiles(p);
  Tile tile;
  Place at;
  for (long long number = blockIdx.x; tiles.Find(number, tile); number += gridDim.x) {
    float sums[PANELS][kTiles][4];
    int before = -1;  // the stage that is being read still
    for (int k = 0; k < p.inner; k += kStageInner, at.Next()) {
      Stage& stage = shared.stages[at.index];
      Wait(SharedAddress(&shared.full[at.index]), at.parity);
      const unsigned a = MatrixAddress(SharedAddress(stage.rhs[group * PANELS]), 0);
      const unsigned b = MatrixAddress(SharedAddress(stage.lhs), 0);
      WarpgroupFence();
#pragma unroll
      for (int step = 0; step < kStageInner / 16; ++step) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
          WarpgroupProduct<Element, ROWS, kEightRows, kEightRows, true>(
              sums[panel], a + (panel * kPanelBytes + step * 2 * kEightRows) / 16,
              b + step * 32 / 16, k > 0 || step > 0);
        }
      }
      WarpgroupCommit();
      WarpgroupWait<1>();
      if (before >= 0 && lane == 0) Arrive(SharedAddress(&shared.empty[before]));
      before = at.index;
    }
    WarpgroupWait<0>();
    if (lane == 0) Arrive(SharedAddress(&shared.empty[before]));

#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
      HoldRegisters(sums[panel]);
      const int column = tile.column + (group * PANELS + panel) * 64 + warp * 16 + lane / 4;
      Out* const out = static_cast<Out*>(p.out) + static_cast<long long>(tile.row) * p.columns;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = i * 8 + lane % 4 * 2 + j % 2, at_column = column + j / 2 * 8;
          if (row < tile.rows && at_column < p.columns) {
            out[static_cast<long long>(row) * p.columns + at_column] =
                FromFloat<Out>(sums[panel][i][j]);
          }
        }
      }
    }
  }
  constexpr int kThreads = GROUPS * 128;
  ZeroRowsFrom<Out>(p, tiles.TotalRows(),
                    static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x,
                    static_cast<long long>(gridDim.x) * kThreads);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(Threads(GROUPS, BLOCKS), BLOCKS)
    grouped_matmul_sm90(const __grid_constant__ Params p, const __grid_constant__ TensorMap lhs,
                        const __grid_constant__ TensorMap rhs) {
  extern __shared__ char memory[];
  const unsigned misplaced = SharedAddress(memory) % kAlignment;
  Shared& shared =
      *reinterpret_cast<Shared*>(memory + (misplaced == 0 ? 0 : kAlignment - misplaced));
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), GROUPS * 4);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (threadIdx.x < GROUPS * 128) {
    if constexpr (BLOCKS == 1) TakeRegisters<232>();
    Multiply(p, shared);
  } else {
    if constexpr (BLOCKS == 1) KeepRegisters<40>();
    if (threadIdx.x < GROUPS * 128 + 32) Load(p, lhs, rhs, shared);
  }
}

}  // namespace xla_gpu::grouped_matmul::sm90
