// What the warps of the Hopper decode kernels that compute have in common: the keys that not every
// row sees, the barriers, when sums go to a second level.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_STEP_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_STEP_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_load.cuh"
#include "src/ops/paged_attention/cuda/decode_sm90_softmax.cuh"
#include "src/ops/paged_attention/cuda/non_finite.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kWriters = 1;  // named barrier of the warps that write
inline constexpr int kWarpBytes = kStepKeys * kBoxTokenBytes;  // from a warp's keys to the next's
// A warp's dimensions: of wide heads a part of all.
inline constexpr int kDimParts = DimParts(kHeadDim);
inline constexpr int kWarpDims = kHeadDim / kDimParts;
inline constexpr int kWarpBlocks = kWarpDims / 16;
inline constexpr int kPartBytes = kWarpDims * static_cast<int>(sizeof(Cache));  // of a key
// Panels that a part has whole: those of the first part, then those of the next. Where the parts
// do not fill their panels each has, besides, its half of the panel behind all of these, or the
// only part the first half.
inline constexpr int kPartPanels = kPartBytes / 128;
inline constexpr bool kHalfPanel = kPartBytes % 128 != 0;
static_assert(!kHalfPanel || (kPartBytes == 128 + 64 && kDimParts <= 2));
static_assert(!kShifted || (kHalfPanel && kDimParts == 1));
__device__ __forceinline__ unsigned PlaceOfPart(int part) {
  return PlaceOfPanel(part * kPartPanels);
}
// Where the half panel begins, of its first row, from the part's first panel.
__device__ __forceinline__ unsigned PlaceOfHalf(int part) {
  return PlaceOfPanel(kDimParts * kPartPanels) - PlaceOfPart(part);
}
// The same of the values, of which the first dimensions lie there if kShifted; and which half.
__device__ __forceinline__ unsigned PlaceOfValueHalf(int part) {
  return kShifted ? 0u - 1024u : PlaceOfHalf(part);
}
__device__ __forceinline__ int ValueHalf(int part) { return kShifted ? 1 : part; }
// The first head dimension of one of a part's blocks of 16; and of one of values.
__device__ __forceinline__ int BlockDim(int part, int block) {
  constexpr int kWhole = kHalfPanel ? kPartPanels * 4 : kWarpBlocks;  // blocks
  if (block < kWhole) return (part * kWhole + block) * 16;
  return (kDimParts * kWhole + part * 2 + block - kWhole) * 16;
}
__device__ __forceinline__ int ValueDim(int part, int block) {
  if constexpr (kShifted) return (block < 4 ? 2 + block : block - 4) * 16;
  return BlockDim(part, block);
}
// So many keys are added up in the tensor cores' accumulators, whose sums lose a little every time,
// before they go to a second level.
inline constexpr int kLevelKeys = 4096 * kLevelTimes;

// Of a piece: where steps of 16 keys have some that a row does not see.
struct HiddenKeys {
  Visible by_all;

  __device__ __forceinline__ bool SomeOf(int key0) const {
    return key0 < by_all.begin || key0 + kStepKeys > by_all.end;
  }
  // Whether another row may see them; there are none if all rows are of one token.
  __device__ __forceinline__ bool SomeAreSeen(const Tile& tile, int key0) const {
    return (key0 < by_all.begin && by_all.begin > tile.key_begin) ||
           (key0 + kStepKeys > by_all.end && by_all.end < tile.key_end);
  }

  // Zeroes a warp's values of a step that no row sees, and those that are not finite: a weight of 0
  // does not hide a NaN. True if it found some of those. All lanes.
  __device__ __forceinline__ bool CleanValues(const Tile& tile, unsigned values, int key0,
                                              int part = 0) const {
    constexpr int kPieces = kPartBytes / 16;
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < kStepKeys * kPieces; i += 32) {
      const int key = key0 + i / kPieces, piece = i % kPieces;
      if (key >= tile.key_begin && key < tile.key_end) continue;
      unsigned at = PlaceOfKey(i / kPieces, piece);
      if (kHalfPanel && piece >= kPartPanels * 8) {
        const int row = i / kPieces;
        at = PlaceOfValueHalf(part) + row / 8 * kKeyGroupBytes +
             SwizzledChunk(row % 8, ValueHalf(part) * 4 + piece - kPartPanels * 8);
      }
      StoreShared(values + at, make_uint4(0, 0, 0, 0));
    }
    __syncwarp();
    bool found = false;
    if (SomeAreSeen(tile, key0)) {
#pragma unroll
      for (int i = 0; i < kStepKeys / 8; ++i) {
        const unsigned group = values + i * kKeyGroupBytes;
        if constexpr (kHalfPanel) {
          found |= ZeroNonFinite<8, 128, 128>(group, lane, 32);
          // The swizzle lays the halves of the last four rows the other way round.
          const unsigned half = group + PlaceOfValueHalf(part);
          found |= ZeroNonFinite<4, 64, 128>(half + ValueHalf(part) * 64, lane, 32);
          found |= ZeroNonFinite<4, 64, 128>(half + 512 + (ValueHalf(part) ^ 1) * 64, lane, 32);
        } else {
          found |= ZeroNonFinite<8, kPartBytes, kPartBytes>(group, lane, 32);
        }
      }
      __syncwarp();
    }
    FenceForMatrixReads();  // before the copy engine writes there again
    return found;
  }
};

__device__ __forceinline__ void InitDecodeBarriers(DecodeMemory& shared) {
  const auto init = [](const auto& barriers, int count) {
    for (const auto& barrier : barriers) InitBarrier(SharedAddress(&barrier), count);
  };
  init(shared.slot_full, 1);
  init(shared.queries_full, kWritersLoadQueries ? kWriteThreads : 32);
  init(shared.slot_empty, kWriteThreads + (kBoxes ? 0 : kRowWarps * 32));
  if (!kBoxes) init(shared.begun, 1);
  init(shared.full, kBoxes ? 1 : kRowWarps * 32);
  init(shared.empty, kWide ? kGroupWarps : kLineWarps);
  init(shared.sums_full, kLineWarps * 32);
  init(shared.sums_empty, kWriteThreads);
  FenceBarrierInit();
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_STEP_CUH_
