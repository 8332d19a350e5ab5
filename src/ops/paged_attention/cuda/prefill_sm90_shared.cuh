// The shared memory of the Hopper prefill kernel: written once for the device, which uses it, and
// for the Host, which asks for it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kRows = 128;      // of a tile: 64 for each of two warpgroups that compute
inline constexpr int kStages = 2;      // of keys, and of values
inline constexpr int kSlots = 4;       // pieces of work, taken ahead
inline constexpr int kThreads = 384;   // a warpgroup that loads, two that compute
inline constexpr int kPanelDims = 64;  // head dimensions in 128 bytes, what the swizzle spans
inline constexpr int kBoxPanels = 4;   // of a box of the copy engine, at most

// CUtensorMap, as the driver writes it.
struct alignas(64) TensorMap {
  char bytes[128];
};

// Keys of a stage: as many as leave room for the sums in registers, and for the stages.
constexpr int PrefillKeys(int head_dim) { return head_dim > 256 ? 64 : head_dim > 128 ? 80 : 128; }

// Of a piece of work, taken ahead.
struct PrefillSlot {
  Tile tile;
  unsigned piece;
  unsigned redo;    // some row of it has to be done again
  unsigned zeroed;  // 1: some row sees a value that is not finite and that lies here as 0
  int stop;         // no piece: the end
};

// A tile of rows (queries, keys or values) lies as [row / 8][panel][row % 8], 128 bytes each, whose
// 16-byte pieces are swizzled: piece c of row r at place c ^ (r % 8).
// `kConverts`: from a cache of fp8, whose bytes come here before they become f16.
template <int kHeadDim, bool kConverts>
struct alignas(1024) PrefillShared {
  static_assert(kHeadDim % kPanelDims == 0);
  // Tiles of queries: one computes, and where there is room another one waits.
  static constexpr int kQueries = kHeadDim > 128 ? 1 : 2;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2;
  static constexpr int kTileBytes = PrefillKeys(kHeadDim) * kHeadDim * 2;  // of keys, or values

  static constexpr int kRawBytes = kConverts ? 32768 : 0;

  char query[kQueries][kQueryBytes];  // and the results, on their way out
  char keys[kStages][kTileBytes];
  char values[kStages][kTileBytes];
  char raw[kConverts ? kRawBytes : 16];
  float row_scale[kQueries][kConverts ? kRows : 1];  // of queries: RowScale::up
  PrefillSlot slots[kSlots];
  using Barrier = unsigned long long;
  Barrier slot_full[kSlots], slot_empty[kSlots];
  Barrier query_full[kQueries], query_empty[kQueries];
  Barrier keys_full[kStages], keys_empty[kStages];
  Barrier values_full[kStages], values_empty[kStages];
  Barrier values_raw;  // values that have still to be cut
};

// Of wide heads a piece is of two blocks, a cluster, with 64 of its rows each. Keys and values lie
// in chunks of 256 head dimensions, which both blocks load for both, and each warpgroup that
// computes has the logits of half of a tile's keys and the values of one chunk.
inline constexpr int kWideHeadDim = 512;
inline constexpr int kWideBlocks = 2;
template <>
struct alignas(1024) PrefillShared<kWideHeadDim, false> {
  static constexpr int kChunks = 2;
  static constexpr int kQueries = 1;
  static constexpr int kBlockRows = kRows / kWideBlocks;
  static constexpr int kQueryBytes = kBlockRows * kWideHeadDim * 2;
  static constexpr int kTileBytes = PrefillKeys(kWideHeadDim) * kWideHeadDim * 2;
  static constexpr int kChunkBytes = kTileBytes / kChunks;
  // A warpgroup may still read the weights of two tiles before.
  static constexpr int kWeights = 3;
  static constexpr int kWeightBytes = kBlockRows * PrefillKeys(kWideHeadDim) * 2;

  char query[kQueries][kQueryBytes];  // and the results, on their way out
  char keys[kChunks][kChunkBytes];
  char values[kChunks][kChunkBytes];
  char weights[kWeights][kWeightBytes];
  float row_scale[kQueries][1];  // not used
  float row_max[2][kBlockRows];  // of each warpgroup's keys
  float row_sum[2][kBlockRows];
  PrefillSlot slots[kSlots];
  unsigned pieces[kSlots];  // that the first block has taken, in the second one
  using Barrier = unsigned long long;
  Barrier slot_full[kSlots], slot_empty[kSlots];
  Barrier piece_full[kSlots], piece_empty[kSlots];
  Barrier query_full[kQueries], query_empty[kQueries];
  Barrier keys_full[kChunks], keys_empty[kChunks];
  Barrier values_full[kChunks], values_empty[kChunks];
  Barrier values_raw[kChunks];  // values that have still to be cut
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_
