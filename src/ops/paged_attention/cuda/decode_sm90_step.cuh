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
static_assert(kDimParts == 1 || kPartBytes % 128 == 0);
// Where a part begins, from the first one.
__device__ __forceinline__ unsigned PlaceOfPart(int part) {
  const int at = part * kPartBytes;
  return at / kBoxBytes * kStageBoxBytes + at % kBoxBytes / 128 * 1024;
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
  __device__ __forceinline__ bool CleanValues(const Tile& tile, unsigned values, int key0) const {
    constexpr int kPieces = kPartBytes / 16;
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < kStepKeys * kPieces; i += 32) {
      const int key = key0 + i / kPieces;
      if (key >= tile.key_begin && key < tile.key_end) continue;
      StoreShared(values + PlaceOfKey(i / kPieces, i % kPieces), make_uint4(0, 0, 0, 0));
    }
    __syncwarp();
    bool found = false;
    if (SomeAreSeen(tile, key0)) {
#pragma unroll
      for (int i = 0; i < kStepKeys / 8; ++i) {
        found |= ZeroNonFinite<8, kPartBytes, kPartBytes>(values + i * kKeyGroupBytes, lane, 32);
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
