// The shared memory of the Hopper decode kernel: written once for the device, which uses it, and
// for the Host, which asks for it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kDecodeWarps = 8;  // that compute
inline constexpr int kWriteWarps = 4;   // that write; another one loads
inline constexpr int kDecodeThreads = 32 * (kDecodeWarps + 1 + kWriteWarps);
inline constexpr int kClusterSeqs = 32;  // at most, where clusters share a head
inline constexpr int kStepKeys = 16;     // of a warp in a stage
inline constexpr int kDecodeKeys = kDecodeWarps * kStepKeys;  // of a stage

// Keys, or values, of a stage lie as [key / 8][panel][key % 8], 128 bytes each, whose 16-byte
// pieces are swizzled: piece c of row r at place c ^ (r % 8).
template <int kHeadDim, int kRows, int kSlotCount>
struct alignas(1024) DecodeSharedOf {
  static constexpr int kStages = 256 / kHeadDim;  // of 64 KB at head_dim 128
  static constexpr int kTileBytes = kDecodeKeys * kHeadDim * 2;
  // Rows start in other banks, so that a warp's lanes reach all of them.
  static constexpr int kQueryStride = kHeadDim * 2 + 16;
  static constexpr int kSumsStride = kHeadDim + 4;
  struct Stage {
    char keys[kTileBytes];
    char values[kTileBytes];
  } stages[kStages];
  // What each warp has found for each row of a piece.
  float sums[kDecodeWarps][kRows][kSumsStride];
  float max[kRows][kDecodeWarps];
  float sum[kRows][kDecodeWarps];
  // Pieces of work, taken ahead.
  static constexpr int kSlots = kSlotCount;
  struct alignas(16) Slot {
    char query[kRows * kQueryStride];
    Tile tile;
    int first_key;  // of the first stage
    int stages;
    unsigned* arrivals;  // of the tile's splits
    int stop;            // no piece: the end
    int bad;             // it met a page out of range
  } slots[kSlots];
  using Barrier = unsigned long long;
  Barrier slot_full[kSlots], slot_empty[kSlots];
  Barrier full[kStages], empty[kStages];
  Barrier sums_full[1], sums_empty[1];
};

template <int kHeadDim>
using DecodeShared = DecodeSharedOf<kHeadDim, kDecodeTileRows, 4>;

// Where the blocks of a cluster share a head: what a block has of a tile that others have parts of.
// The first such tile of its range began in another block, the second ends in another one.
template <int kHeadDim, int kRows>
struct ClusterShared : DecodeSharedOf<kHeadDim, kRows, 3> {
  struct alignas(16) Part {
    float sums[kRows][kHeadDim];
    float max[kRows];
    float sum[kRows];
    Tile tile;
    int exists;
  } parts[2];
  // Of tokens: 1: no sequence owns it, 2: and one with wrong lengths claims it.
  char fill[kClusterSeqs];
  int has_fills;
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_
