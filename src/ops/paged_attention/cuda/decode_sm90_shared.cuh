// The shared memory of the Hopper decode kernels: written once for the device, which uses it, and
// for the Host, which asks for it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kDecodeWarps = 8;     // that compute
inline constexpr int kTokenWarps = 4;      // the same, where two blocks share a multiprocessor
inline constexpr int kClusterTokens = 16;  // at most, where clusters share a head
inline constexpr int kClusterSeqs = 32;    // that have rows, a lane each
inline constexpr int kMostClusterSeqs = 1024;
inline constexpr int kMostClusterBlocks = 16;
inline constexpr int kStepKeys = 16;  // of a warp in a stage
// Of wider heads some warps share keys, and each has so many of the head dimensions.
inline constexpr int kMostWarpDims = 128;
constexpr int DimParts(int head_dim) { return (head_dim + kMostWarpDims - 1) / kMostWarpDims; }
// Of a row of keys or values in shared memory: whole panels.
constexpr int PanelBytes(int row_bytes) { return (row_bytes + 127) / 128 * 128; }
constexpr int DecodeKeys(int head_dim, int warps = kDecodeWarps) {  // of a stage
  return warps / DimParts(head_dim) * kStepKeys;
}

// Tiles of more rows than kDecodeTileRows are computed by two warpgroups instead of eight warps.
constexpr bool IsWide(int rows) { return rows > kDecodeTileRows; }
inline constexpr int kGroupWarps = 4;  // of a warpgroup
inline constexpr int kGroups = kDecodeWarps / kGroupWarps;
// One warp finds the pieces, and loads keys and values by boxes; where those do not fit the pages
// others copy single rows. The rest write. 13 to 16 warps leave 128 registers a thread, 12 leave
// 168.
inline constexpr int kRowWarps = 4;
constexpr int FirstWriteWarp(bool boxes, int warps = kDecodeWarps) {
  return warps + 1 + (boxes ? 0 : kRowWarps);
}
// Of decode_tokens_sm90.cuh (`whole`) two blocks with 128 registers a thread fill a multiprocessor.
constexpr int WriteWarps(int rows, bool boxes, bool whole = false) {
  return IsWide(rows) || !boxes || whole ? 3 : 4;
}
constexpr int DecodeThreads(int rows, bool boxes, bool whole = false) {
  const int first = FirstWriteWarp(boxes, whole ? kTokenWarps : kDecodeWarps);
  return 32 * (first + WriteWarps(rows, boxes, whole));
}

// Keys, or values, of a stage lie as [key / 8][panel][key % 8], 128 bytes each, whose 16-byte
// pieces are swizzled: piece c of row r at place c ^ (r % 8). Of heads wider than a box the panels
// of the first boxes of all keys lie before those of the second.
template <int kKeyBytes, int kKeys, int kWarps = kDecodeWarps>
struct DecodeStages {
  static constexpr int kStageKeys = kKeys;
  // 16 KB a warp, or nearly.
  static constexpr int kStages = (2 * kWarps * 16384 / (2 * kKeys * kKeyBytes) + 1) / 2;
  static constexpr int kTileBytes = kKeys * kKeyBytes;
  struct Stage {
    char keys[kTileBytes];
    char values[kTileBytes];
  } stages[kStages];
};

// Of a piece of work, taken ahead.
struct alignas(16) DecodeSlot {
  Tile tile;
  int first_key;  // of the first stage
  int stages;
  unsigned* arrivals;  // of the tile's splits
  int stop;            // no piece: the end
  int bad;             // it met a page out of range
};

// For the warp that loads: what each thread of the block finds of a sequence, and each warp of 32.
struct WarpSequences {
  int line;    // the length of their part of the line
  int end;     // the greatest of those that are valid
  int begin;   // the least of those that have rows; -1: a row is of two of them
  int tokens;  // that they have
};
template <int kMostSeqs>
struct OwnLine {
  static constexpr int kSeqs = kMostSeqs;  // 0: blocks wait for the schedule's line
  static constexpr int kRoom = kSeqs > 0 ? kSeqs : 1;
  SequenceInfo infos[kRoom];  // line_end: from the warp's first sequence on
  WarpSequences warps[(kRoom + 31) / 32];
  int num_seqs;
};

template <int kStages, int kSlots>
struct DecodeBarriers {
  using Barrier = unsigned long long;
  Barrier slot_full[kSlots], queries_full[kSlots], slot_empty[kSlots];
  Barrier begun[kSlots];  // of single rows: the first are being copied
  Barrier full[kStages], empty[kStages];
  Barrier sums_full[1], sums_empty[1];
  int has_fills;  // some rows belong to no sequence
};

template <int kHeadDim, int kElement, int kWarps>
using NarrowStages =
    DecodeStages<PanelBytes(kHeadDim* kElement), DecodeKeys(kHeadDim, kWarps), kWarps>;
template <int kHeadDim, int kElement, int kRows, int kSlotCount, int kOwnSeqs,
          int kWarps = kDecodeWarps>
struct alignas(1024) DecodeSharedOf
    : NarrowStages<kHeadDim, kElement, kWarps>,
      DecodeBarriers<NarrowStages<kHeadDim, kElement, kWarps>::kStages, kSlotCount> {
  // Rows start in other banks, so that a warp's lanes reach all of them.
  static constexpr int kQueryStride = kHeadDim * 2 + 16;
  static constexpr int kSumsStride = kHeadDim + 4;
  // What the warps of each 16 keys have found for each row of a piece. Of wide heads there is room
  // for eight rows, which are handed over at a time.
  static constexpr int kParts = kWarps / DimParts(kHeadDim);
  static constexpr int kMostSumRows = DimParts(kHeadDim) > 1 ? 8 : 64;
  static constexpr int kSumRows = kRows < kMostSumRows ? kRows : kMostSumRows;
  alignas(16) float sums[kParts][kSumRows][kSumsStride];
  float max[kRows][kParts];
  float sum[kRows][kParts];
  // Of wide heads: each warp's part of the logits, by turns in two places.
  static constexpr int kExchangeBytes = DimParts(kHeadDim) > 1 ? kWarps* kRows / 8 * 512 : 0;
  alignas(16) char exchange[kExchangeBytes > 0 ? 2 * kExchangeBytes : 16];
  static constexpr int kSlots = kSlotCount;
  alignas(16) char queries[kSlots][kRows * kQueryStride];
  DecodeSlot slots[kSlots];
  OwnLine<kOwnSeqs> own;
};

// Of wide tiles: the warpgroups take stages of 64 keys in turn. Queries and weights lie as operands
// of the matrix instructions, as keys do.
template <int kHeadDim, int kRows, bool kBoxes>
struct alignas(1024) WideDecodeShared : DecodeStages<kHeadDim * 2, 64>,
                                        DecodeBarriers<DecodeStages<kHeadDim * 2, 64>::kStages, 4> {
  static constexpr int kSlots = 4;
  static constexpr int kQueryStride = kHeadDim * 2;
  alignas(1024) char queries[kSlots][kRows * kQueryStride];
  alignas(1024) char weights[kGroups][kRows * 128];  // of 64 keys
  static constexpr int kSumsStride = kHeadDim + 4;
  static constexpr int kParts = kGroups;
  static constexpr int kSumRows = kRows;
  alignas(16) float sums[kParts][kSumRows][kSumsStride];
  float max[kRows][kParts];
  float sum[kRows][kParts];
  float of_warps[kGroups][kRows][kGroupWarps];
  int seen_begin[kGroups][kRows], seen_end[kGroups][kRows];  // the keys that each row sees
  DecodeSlot slots[kSlots];
  OwnLine<DecodeThreads(kRows, kBoxes)> own;
};

// For elements of the cache of kElement bytes; those of wide tiles have two.
template <int kHeadDim, int kElement, int kRows, bool kBoxes>
struct DecodeSharedFor {
  using Type = WideDecodeShared<kHeadDim, kRows, kBoxes>;
};
template <int kHeadDim, int kElement, bool kBoxes>
struct DecodeSharedFor<kHeadDim, kElement, kDecodeTileRows, kBoxes> {
  using Type = DecodeSharedOf<kHeadDim, kElement, kDecodeTileRows, kHeadDim == 512 ? 3 : 4,
                              kHeadDim == 512 ? 0 : DecodeThreads(kDecodeTileRows, kBoxes)>;
};
template <int kHeadDim, int kElement, bool kBoxes>
struct DecodeSharedFor<kHeadDim, kElement, kDecodeTileRows / 2, kBoxes> {
  using Type = DecodeSharedOf<kHeadDim, kElement, kDecodeTileRows / 2, 4,
                              DecodeThreads(kDecodeTileRows / 2, kBoxes)>;
};
template <int kHeadDim, int kElement, int kRows, bool kBoxes>
using DecodeShared = typename DecodeSharedFor<kHeadDim, kElement, kRows, kBoxes>::Type;

// A tile of `rows` rows, `vectors` vectors of four elements each, that several blocks of a cluster
// have parts of is shared out among them: room for one's share of each part.
struct ShareRoom {
  int vectors, rows;
};
constexpr ShareRoom RoomOfShares(int most_rows, int vectors) {
  ShareRoom room = {};
  for (int rows = 1; rows <= most_rows; ++rows) {
    for (int splits = 2; splits <= kMostClusterBlocks; ++splits) {
      const int each = (rows * vectors + splits - 1) / splits;
      const int of_rows = (each + vectors - 2) / vectors + 1;
      if (splits * each > room.vectors) room.vectors = splits * each;
      if (splits * of_rows > room.rows) room.rows = splits * of_rows;
    }
  }
  return room;
}

// Where the blocks of a cluster share a head, of a tile that several have parts of: this block's
// share of its elements, from each of them, one after the other. The first such tile of a block's
// range began in another block, the second ends in another one.
template <int kHeadDim, int kElement, int kRows>
struct ClusterShared : DecodeSharedOf<kHeadDim, kElement, kRows, 3, 0> {
  static constexpr ShareRoom kRoom = RoomOfShares(kRows, kHeadDim / 4);
  struct alignas(16) Shares {
    float sums[kRoom.vectors][4];
    float max_and_sum[kRoom.rows][2];  // of the rows that it has elements of
    unsigned long long full;           // a barrier
    int exist;
    int split, splits, query_begin, first_row, num_rows;  // as in Tile
  } shares[2];
  // Of tokens: 1: no sequence owns it, 2: and one with wrong lengths claims it.
  char fill[kClusterSeqs];
};

// Where a block takes tokens whole: how long the line is that each warp's sequences make, and the
// tokens of the block.
template <int kHeadDim, int kElement, int kRows>
struct TokenShared : DecodeSharedOf<kHeadDim, kElement, kRows, 3, 0, kTokenWarps> {
  int lengths[DecodeThreads(kRows, true, true) / 32];
  int first, end;
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_SHARED_CUH_
