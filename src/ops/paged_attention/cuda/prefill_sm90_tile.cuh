// What the warps of the Hopper prefill kernel share: where things lie, and rings of stages.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TILE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TILE_CUH_

#include "src/cuda/ptx_sm90.cuh"
#include "src/cuda/wgmma.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/softmax.cuh"
#include "src/ops/paged_attention/cuda/terms.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Keys and values of fp8 become f16 on their way (prefill_sm90_convert.cuh); queries of f32 become
// terms as those of the copy are (terms.cuh).
inline constexpr bool kConverts = kOneByte;
inline constexpr bool kTerms = kSameType<Query, float>;
inline constexpr Source kSource = kConverts ? Source::kBytes
                                  : kTerms  ? Source::kTerms
                                            : Source::kElements;
static_assert(kConverts || kTerms || kSameType<Query, Cache>);
template <bool kOfTerms>
struct DotOperandOf {
  using Type = Operand;
};
template <>
struct DotOperandOf<true> {
  using Type = F16;
};
using DotOperand = DotOperandOf<kTerms>::Type;  // of queries and keys

inline constexpr int kRows = kTileRows;
inline constexpr int kKeys = PrefillKeys(kHeadDim, kSource);  // of a stage
static_assert(kRows == PrefillRows(kHeadDim) ||
              (kRows == kManyPrefillRows && kHeadDim <= kPanelDims &&
               kSource == Source::kElements));
static_assert(kTileKeys == kKeys);

inline constexpr int kTileDims = PrefillDims(kHeadDim);
inline constexpr int kHalves = PrefillHalves(kHeadDim);
inline constexpr int kHalfDims = kTileDims / kHalves;
inline constexpr int kSumTiles =
    (kRoundedPrefill ? kHalfDims : (kHeadDim / kHalves + 15) / 16 * 16) / 8;
using Shared = PrefillShared<kTileDims, kSource, kRows>;
using Slot = Shared::Slot;
inline constexpr int kPanels = kHalfDims / kPanelDims;  // of a half
inline constexpr int kSlicePanels = kHeadDim % kPanelDims == 0 ? kPanels : 1;
inline constexpr int kSlices = kHalves * kPanels / kSlicePanels;
inline constexpr int kGroupBytes = kSlicePanels * 1024;  // eight rows of a slice
template <int kOfRows>
inline constexpr int kSliceBytes = kOfRows / 8 * kGroupBytes;
inline constexpr int kDotTerms = Shared::kDotTerms;
inline constexpr int kValueTerms = Shared::kValueTerms;
static_assert(!kTerms || kSlices == 1);  // of a term
inline constexpr int kQueries = Shared::kQueries;
inline constexpr int kQueryParts = Shared::kQueryParts;
inline constexpr int kStages = Shared::kStages;
inline constexpr int kPieces = kHalfDims / 8;              // of 16 bytes in a half of a row
inline constexpr int kOwnPieces = kHeadDim / 8 / kHalves;  // those of the head
inline constexpr int kLoadWarps = PrefillLoadWarps(kHeadDim, kConverts);
inline constexpr int kComputeGroups = PrefillGroups(kHeadDim, kRows);  // warpgroups that compute
inline constexpr int kComputeWarps = 4 * kComputeGroups;               // the first ones

// Which of a ring's places is next, and the parity of its phase.
template <int kCount>
struct Place {
  int index = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void Next() {
    if (++index == kCount) index = 0, parity ^= 1;
  }
};

template <int kCount>
__device__ __forceinline__ unsigned At(const Shared::Barrier (&barriers)[kCount],
                                       const Place<kCount>& place) {
  return SharedAddress(&barriers[0]) + place.index * 8;
}

// Of all lanes' equal values one that the compiler knows to be equal.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

// Where a panel begins in a tile of so many rows, and a piece of one of them.
template <int kOfRows>
__device__ __forceinline__ constexpr int PanelPlace(int panel) {
  return panel / kSlicePanels * kSliceBytes<kOfRows> + panel % kSlicePanels * 1024;
}
template <int kOfRows = kRows>
__device__ __forceinline__ unsigned PlaceInTile(int row, int piece) {
  return row / 8 * kGroupBytes + PanelPlace<kOfRows>(piece / 8) + SwizzledChunk(row % 8, piece % 8);
}

// Where an item's tiles of keys begin: with a box, and not at a multiple of kKeys, so that what a
// window leaves is in no more tiles than it has to be.
__device__ __forceinline__ int FirstKey(const Tile& tile) { return tile.key_begin & -kBoxTokens; }
// So many tiles of kKeys keys from there on.
struct KeyTiles {
  int first_key;
  int count;
};
__device__ __forceinline__ KeyTiles TilesOf(const Tile& tile) {
  const int first = FirstKey(tile), keys = tile.key_end > tile.key_begin ? tile.key_end - first : 0;
  return {Uniform(first), Uniform((keys + kKeys - 1) / kKeys)};
}
// VisibleKeys, counted from there.
__device__ __forceinline__ Visible SeenInTiles(const Params& p, const Tile& tile, int row) {
  const Visible keys = VisibleKeys(p, tile, row);
  return {keys.begin - FirstKey(tile), keys.end - FirstKey(tile)};
}

// Goes over every kStep-th row of a tile: where it lies in the query and the output, in rows of
// those.
template <int kStep>
struct RowWalk {
  __device__ __forceinline__ RowWalk(const Params& p, const Tile& tile, int row)
      : group(p.group_size), jump(p.q_heads - p.group_size) {
    const int first = tile.first_row + row;
    const int token = Quotient(first, p.by_group);
    in_group = first - token * group;
    at = (tile.query_begin + token) * p.q_heads + tile.head * group + in_group;
    const int tokens = Quotient(kStep, p.by_group);
    rest = kStep - tokens * group;
    step = tokens * p.q_heads + rest;
  }
  __device__ __forceinline__ void Next() {
    at += step;
    in_group += rest;
    if (in_group >= group) in_group -= group, at += jump;
  }
  const int group, jump;
  int in_group, at, rest, step;
};
// Rows that a warp reads or writes at once, and its lanes that do; the others stay with the first
// row.
inline constexpr int kRowStep = 32 / kPieces;
inline constexpr int kRowLanes = kRowStep * kPieces;

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_TILE_CUH_
