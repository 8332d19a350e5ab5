// The shared memory of the Hopper prefill kernel: written once for the device, which uses it, and
// for the Host, which asks for it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_

#include "src/cuda/tensor_map.cuh"
#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kSlots = 4;       // pieces of work, taken ahead
inline constexpr int kPanelDims = 64;  // head dimensions in 128 bytes, what the swizzle spans
inline constexpr int kBoxPanels = 4;   // of a box of the copy engine, at most
inline constexpr int kBoxTokens = 16;  // and a power of two

// What keys and values are made of: elements of the cache, bytes of fp8, which become f16 here, or
// terms of f32 numbers (terms.cuh).
enum class Source { kElements, kBytes, kTerms };

// Warps that load, besides the warpgroups that compute.
constexpr int PrefillLoadWarps(long long head_dim, bool converts) {
  return converts && head_dim > 64 ? 8 : 4;
}

// Head dimensions of a row of a tile: whole panels, zeros past the head's own.
constexpr int PrefillDims(int head_dim) {
  return (head_dim + kPanelDims - 1) / kPanelDims * kPanelDims;
}

// Wide heads: the sums of 64 rows fill the registers of both warpgroups that compute, so that each
// has the same rows and half of the dimensions.
constexpr int PrefillHalves(long long head_dim) { return head_dim > 256 ? 2 : 1; }
constexpr int PrefillRows(long long head_dim) { return 128 / PrefillHalves(head_dim); }
// Or, of a head of one panel, as many as three warpgroups have: of two often both wait.
inline constexpr int kManyPrefillRows = 192;

// Warpgroups that compute.
constexpr int PrefillGroups(long long head_dim, int rows) {
  return rows / 64 * PrefillHalves(head_dim);
}
constexpr int PrefillThreads(long long head_dim, int rows, bool converts) {
  return 128 * PrefillGroups(head_dim, rows) + 32 * PrefillLoadWarps(head_dim, converts);
}

// Keys of a stage: as many as leave room for the sums in registers, and for the stages.
constexpr int PrefillKeys(long long head_dim, Source source = Source::kElements) {
  return head_dim > 256 || source == Source::kTerms ? 64 : head_dim > 128 ? 80 : 128;
}
// Stages of keys, and of values.
constexpr int PrefillStages(long long head_dim) { return head_dim > 256 ? 1 : 2; }

// A tile of rows (queries, keys or values) lies as [slice][row / 8][panel][row % 8], 128 bytes
// each, whose 16-byte pieces are swizzled: piece c of row r at place c ^ (r % 8). A slice is what a
// box of the copy engine holds of a row: up to kBoxPanels; one where the head's dimensions do not
// fill them, since only the innermost dimension of a box is filled up with zeros. Terms lie one
// after the other, a slice each.
template <int kTileDims, Source kSource, int kRows = PrefillRows(kTileDims)>
struct alignas(1024) PrefillShared {
  static_assert(kTileDims % kPanelDims == 0);
  static constexpr bool kConverts = kSource == Source::kBytes, kTerms = kSource == Source::kTerms;
  static constexpr int kDotTerms = kTerms ? kTermsOfDots : 1;  // of queries, and of keys
  static constexpr int kValueTerms = kTerms ? kTermsOfValues : 1;
  // Tiles of queries: one computes, and where there is room another one waits.
  static constexpr int kQueries = kTileDims * kDotTerms > 192 ? 1 : 2;
  // Of a tile of queries each warpgroup that computes waits for its own rows.
  static constexpr int kQueryParts = kConverts ? 1 : kRows / 64;
  static constexpr int kStages = PrefillStages(kTileDims);
  static constexpr int kQueryBytes = kRows * kTileDims * 2 * kDotTerms;
  static constexpr int kTileBytes = PrefillKeys(kTileDims, kSource) * kTileDims * 2;  // of a term
  static constexpr int kKeyBytes = kTileBytes * kDotTerms;
  static constexpr int kValueBytes = kTileBytes * kValueTerms;

  static constexpr int kRawBytes = kConverts ? 32768 : 0;

  char query[kQueries][kQueryBytes];  // and the results, on their way out
  char keys[kStages][kKeyBytes];
  char values[kStages][kValueBytes];
  char raw[kConverts ? kRawBytes : 16];
  float row_scale[kQueries][kConverts || kTerms ? kRows : 1];  // of queries: what undoes it
  struct Slot {
    Tile tile;  // this block's rows of the piece
    unsigned piece;
    unsigned redo;    // some row of it has to be done again; of a cluster that of its first block
    unsigned zeroed;  // 1: some row sees a value that is not finite and that lies here as 0
    int stop;         // no piece: the end
    int first_row, num_rows;  // of the piece
  } slots[kSlots];
  unsigned taken[kSlots];  // pieces that the cluster's first block has taken
  using Barrier = unsigned long long;
  Barrier slot_full[kSlots], slot_empty[kSlots];
  Barrier taken_full[kSlots], taken_empty[kSlots];
  Barrier piece_wanted[1];  // another one, to be taken
  Barrier query_full[kQueryParts][kQueries], query_empty[kQueryParts][kQueries];
  Barrier keys_full[kStages], keys_empty[kStages];
  Barrier values_full[kStages], values_empty[kStages];
  Barrier values_raw[kStages];  // values that have still to be cut
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_SHARED_CUH_
