// grouped_matmul on Hopper, lhs of bf16 and f16: the transposed product of a tile, columns of rhs
// by rows of lhs, so that a group of a few rows costs little more than reading its matrix.
//
// A warp copies tiles of both by the tensor copy engine, stages ahead; each of GROUPS warpgroups
// multiplies PANELS panels of columns by the tile's rows. A panel is 64 columns of lhs's type, read
// from shared memory by the matrix instructions, or 128 of 8 bits, which threads make operands of.
// Blocks take tiles in turn; where there are few tiles, pairs of blocks do, each of which sums half
// of the inner dimension and in the end adds up one half of the tile.
//
// Defines: LHS_TYPE, RHS_TYPE (lhs's or of 8 bits), OUT_TYPE; ROWS of a tile; GROUPS, PANELS (1 of
// 8 bits), STAGES; SCALE_BLOCKS (0, 1, or 2 for more); BLOCKS that share a multiprocessor; SPLITS
// (2: pairs of blocks, with SCALE_BLOCKS up to 1).
#include "src/cuda/ptx_sm90.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/cuda/wgmma.cuh"
#include "src/ops/grouped_matmul/cuda/convert_sm90.cuh"
#include "src/ops/grouped_matmul/cuda/tiles.cuh"

namespace xla_gpu::grouped_matmul::sm90 {
namespace {

using Element = LHS_TYPE;
using Rhs = RHS_TYPE;
using Out = OUT_TYPE;

constexpr bool kConverts = sizeof(Rhs) == 1;
static_assert(!kConverts || PANELS == 1);
constexpr int kAllPanels = GROUPS * PANELS;
constexpr int kPanelColumns = PanelColumns(sizeof(Rhs));
constexpr int kColumns = kPanelColumns * kAllPanels;
constexpr int kSums = PANELS * kPanelColumns / 64;   // of a warpgroup, 64 columns each
constexpr int kTiles = ROWS / 8;                     // of one
constexpr int kEightRows = 1024;                     // bytes of eight rows of a panel
constexpr int kThreads = GROUPS * 128;               // that compute
constexpr int kShare = kSums * kTiles * 4 / SPLITS;  // of a thread's sums, that a block finishes
static_assert(SPLITS == 1 || SCALE_BLOCKS < 2);

struct Stage {
  char rhs[kAllPanels][kPanelBytes];  // rows along the columns of rhs
  char lhs[ROWS * kStageInner * 2];   // rows along the inner dimension
};
static_assert(sizeof(Stage) == StageBytes(ROWS, kAllPanels));

__device__ __forceinline__ int Rank() { return static_cast<int>(blockIdx.x % SPLITS); }

using Sums = float[kSums][kTiles][4];

// Of a pair of blocks that share a tile: what the other one has summed of this one's half.
template <int kSplits, bool kPairs = (kSplits > 1)>
struct Exchange {
  static_assert(kSplits == 2 && kShare % 4 == 0);

  __device__ __forceinline__ void Init() {
    InitBarrier(SharedAddress(&here), 1);
    InitBarrier(SharedAddress(&taken), GROUPS * 4);
  }

  // Adds up this block's half; what `mine` has of the other stays as it was. `parity`: 0 for the
  // first tile, then 1 and 0 in turn.
  __device__ __forceinline__ void AddUp(Sums& mine, unsigned parity) {
    float* const flat = &mine[0][0][0];
    const int rank = Rank(), other = 1 - rank, thread = threadIdx.x;
    Wait(SharedAddress(&taken), parity ^ 1);
    if (thread == 0) ArriveExpecting(SharedAddress(&here), sizeof(sums));
    const unsigned barrier = InBlock(SharedAddress(&here), other);
#pragma unroll
    for (int i = 0; i < kShare; i += 4) {
      Vector<float, 4> x;
#pragma unroll
      for (int j = 0; j < 4; ++j) x.x[j] = rank == 0 ? flat[kShare + i + j] : flat[i + j];
      StoreInBlock(InBlock(SharedAddress(sums[i / 4][thread]), other), x, barrier);
    }
    Wait(SharedAddress(&here), parity);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const float x = sums[i / 4][thread][i % 4];
      if (rank == 0) {
        flat[i] += x;
      } else {
        flat[kShare + i] += x;
      }
    }
    __syncwarp();
    if (thread % 32 == 0) ArriveInBlock(InBlock(SharedAddress(&taken), other));
  }

  alignas(16) float sums[kShare / 4][kThreads][4];
  unsigned long long here;   // they are
  unsigned long long taken;  // are those that this block has stored in the other one
};
template <int kSplits>
struct Exchange<kSplits, false> {
  __device__ __forceinline__ void Init() {}
  __device__ __forceinline__ void AddUp(Sums&, unsigned) {}
};

struct Stages {
  Stage stages[STAGES];
};
struct Shared : Stages, Exchange<SPLITS> {
  unsigned long long full[STAGES];   // its bytes are there
  unsigned long long empty[STAGES];  // all warps have read it
};
static_assert(sizeof(Shared) + kAlignment ==
              SharedBytes(ROWS, kAllPanels, kPanelColumns, STAGES, SPLITS));

// A stage, and the parity of its phases.
struct Place {
  __device__ __forceinline__ void Next() {
    if (++index == STAGES) index = 0, parity ^= 1;
  }
  int index = 0;
  unsigned parity = 0;
};

using TileList = Tiles<ROWS, kColumns>;

// The part of the inner dimension that this block sums: stages of it, at least one.
struct Inner {
  __device__ __forceinline__ explicit Inner(const Params& p) {
    const int stages = (p.inner + kStageInner - 1) / kStageInner;
    begin = stages * Rank() / SPLITS * kStageInner;
    end = stages * (Rank() + 1) / SPLITS * kStageInner;
  }
  int begin, end;
};

__device__ __forceinline__ void Load(const Params& p, const TensorMap& lhs, const TensorMap& rhs,
                                     Shared& shared) {
  const Inner inner(p);
  TileList tiles(p);
  Tile tile;
  Place at;
  for (long long number = blockIdx.x / SPLITS; tiles.Find(number, tile);
       number += gridDim.x / SPLITS) {
    if (threadIdx.x % 32 == 0) {
      for (int k = inner.begin; k < inner.end; k += kStageInner, at.Next()) {
        Stage& stage = shared.stages[at.index];
        const unsigned full = SharedAddress(&shared.full[at.index]);
        Wait(SharedAddress(&shared.empty[at.index]), at.parity ^ 1);
        ArriveExpecting(full, sizeof(Stage));
#pragma unroll
        for (int i = 0; i < kAllPanels; ++i) {
          const int column = tile.column + i * kPanelColumns;  // in 16-bit words
          CopyBox(SharedAddress(stage.rhs[i]), &rhs, full, kConverts ? column / 2 : column, k,
                  tile.group, 0, 0);
        }
        CopyBox(SharedAddress(stage.lhs), &lhs, full, k, tile.row, 0, 0, 0);
      }
    }
    __syncwarp();
  }
}

// Until here sums are only what the next products add to, which name them.
__device__ __forceinline__ void WaitForSums(Sums& sums) {
  WarpgroupWait<0>();
#pragma unroll
  for (int n = 0; n < kSums; ++n) HoldRegisters(sums[n]);
}

// Of the tile from its first stage on; `at` is then past its last. Leaves every stage read but the
// last one, `before`.
__device__ __forceinline__ void MultiplyPanels(const Params& p, Shared& shared, Place& at,
                                               Sums& sums, int& before) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const Inner inner(p);
  for (int k = inner.begin; k < inner.end; k += kStageInner, at.Next()) {
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
            sums[panel], a + (panel * kPanelBytes + step * 2 * kEightRows) / 16, b + step * 32 / 16,
            k > inner.begin || step > 0);
      }
    }
    WarpgroupCommit();
    WarpgroupWait<1>();
    if (before >= 0 && lane == 0) Arrive(SharedAddress(&shared.empty[before]));
    before = at.index;
  }
}

// The first of this thread's four columns of 8 bits.
__device__ __forceinline__ int FirstColumn(const Tile& tile) {
  return tile.column + static_cast<int>(threadIdx.x) / 4 * 4;
}

// Multiplies the sums by the scales of their columns.
__device__ __forceinline__ void Scale(const Params& p, const Tile& tile, int block, Sums& sums) {
  const int column = FirstColumn(tile);
  if (column >= p.columns) return;
  const float* const scales =
      p.rhs_scale + (static_cast<long long>(tile.group) * p.scale_blocks + block) * p.columns +
      column;
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    const float scale[2] = {scales[2 * n], scales[2 * n + 1]};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[n][i][j] *= scale[j / 2];
    }
  }
}

// The same of 8 bits: operands are made while the products of those before are computed.
__device__ __forceinline__ void MultiplyConverted(const Params& p, const Tile& tile, Shared& shared,
                                                  Place& at, Sums& sums, int& before) {
  constexpr bool kFolds = SCALE_BLOCKS > 1;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int block_inner = p.inner / max(p.scale_blocks, 1);
  float all[kFolds ? kSums : 1][kTiles][4] = {};
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[n][i][j] = 0.0f;
    }
  }
  Operand operands[2];
  const Inner inner(p);
  for (int k = inner.begin; k < inner.end; k += kStageInner, at.Next()) {
    Stage& stage = shared.stages[at.index];
    Wait(SharedAddress(&shared.full[at.index]), at.parity);
    const Elements elements(SharedAddress(stage.rhs[group]));
    const unsigned b = MatrixAddress(SharedAddress(stage.lhs), 0);
#pragma unroll
    for (int step = 0; step < kStageInner / 16; ++step) {
      Operand& operand = operands[step % 2];
      elements.Convert<Element, Rhs>(step, operand);
      WarpgroupFence();
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
        WarpgroupAdd<Element, ROWS, kEightRows, false>(sums[n], operand[n], b + step * 32 / 16);
      }
      WarpgroupCommit();
      WarpgroupWait<1>();  // those before, whose operand is the next one
      if (step == 0 && before >= 0 && lane == 0) Arrive(SharedAddress(&shared.empty[before]));
    }
    before = at.index;
    if constexpr (kFolds) {
      if ((k + kStageInner) % block_inner != 0) continue;
      WaitForSums(sums);
      Scale(p, tile, k / block_inner, sums);
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) all[n][i][j] += sums[n][i][j], sums[n][i][j] = 0.0f;
        }
      }
    }
  }
  if constexpr (kFolds) {
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n][i][j] = all[n][i][j];
      }
    }
  }
}

__device__ __forceinline__ void Multiply(const Params& p, Shared& shared) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  TileList tiles(p);
  Tile tile;
  Place at;
  unsigned parity = 0;  // of the tile
  for (long long number = blockIdx.x / SPLITS; tiles.Find(number, tile);
       number += gridDim.x / SPLITS) {
    Sums sums;
    int before = -1;  // the stage that is being read still
    if constexpr (kConverts) {
      MultiplyConverted(p, tile, shared, at, sums, before);
    } else {
      MultiplyPanels(p, shared, at, sums, before);
    }
    WaitForSums(sums);
    if (lane == 0) Arrive(SharedAddress(&shared.empty[before]));
    if constexpr (SCALE_BLOCKS == 1) Scale(p, tile, 0, sums);
    shared.AddUp(sums, parity);
    parity ^= 1;

    Out* const out = static_cast<Out*>(p.out) + static_cast<long long>(tile.row) * p.columns;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const int first = kConverts ? FirstColumn(tile) + 2 * n
                                  : tile.column + (group * PANELS + n) * 64 + warp * 16 + lane / 4;
      constexpr int kNext = kConverts ? 1 : 8;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = i * 8 + lane % 4 * 2 + j % 2, column = first + j / 2 * kNext;
          if (((n * kTiles + i) * 4 + j) / kShare != Rank()) continue;
          if (row < tile.rows && column < p.columns) {
            out[static_cast<long long>(row) * p.columns + column] = FromFloat<Out>(sums[n][i][j]);
          }
        }
      }
    }
  }
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
    shared.Init();
    FenceBarrierInit();
  }
  if constexpr (SPLITS > 1) {
    SyncCluster();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < kThreads) {
    if constexpr (BLOCKS == 1) TakeRegisters<232>();
    Multiply(p, shared);
  } else {
    if constexpr (BLOCKS == 1) KeepRegisters<40>();
    if (threadIdx.x < kThreads + 32) Load(p, lhs, rhs, shared);
  }
  if constexpr (SPLITS > 1) SyncCluster();  // others reach into this block's memory until here
}

}  // namespace xla_gpu::grouped_matmul::sm90
