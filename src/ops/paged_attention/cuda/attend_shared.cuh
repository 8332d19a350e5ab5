// The shared memory of the attend kernels, and what their threads carry in the workspace: written
// once for the device, which uses them, and for the Host, which asks for them. Sizes are in bytes.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_SHARED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_SHARED_CUH_

#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention {

// Of attend_sm80.cu. Rows have 16 bytes more than their data, so that they start in other banks.
struct MmaShared {
  int head_dim;
  int element;  // of the cache
  int tile_rows = 0;
  int tile_keys = 0;

  // f32 is two words to the tensor cores, and fp8 becomes f16.
  constexpr bool split() const { return element == 4; }
  constexpr int operand() const { return split() ? 4 : 2; }
  constexpr int fragment_keys() const { return split() ? 8 : 16; }  // of an operand
  // Of wider heads a warp's registers do not hold the sums: two neighbours, of f32 also all four,
  // share rows and keys, and each has one part of the head dimensions. Their logits are the sums of
  // the parts.
  constexpr int parts() const {
    const int row = head_dim * operand();
    return row > 1024 ? 4 : row > 512 ? 2 : 1;
  }
  constexpr int padded() const {  // head_dim
    const int align = (element == 2 ? 16 : 32) * parts();
    return (head_dim + align - 1) / align * align;
  }
  constexpr int own_dims() const { return padded() / parts(); }  // of a warp
  // Rows of a tile at most. The sums of the rows' values stay in registers, 128 of them a thread,
  // of f32, which needs more for its operands, 64.
  constexpr int widest_tile() const {
    const int row = head_dim * operand();
    return row <= 256 ? 128 : row <= 512 ? 64 : row <= 1024 ? 32 : 16;
  }

  constexpr int query_stride() const { return padded() * operand() + 16; }
  constexpr int cache_stride() const { return padded() * element + 16; }
  constexpr int query_bytes() const { return tile_rows * query_stride(); }
  constexpr int keys_bytes() const { return tile_keys * cache_stride(); }
  // Two stages of keys and values of prefill, or of decode, where a warp loads its own dimensions.
  constexpr int prefill_bytes() const { return query_bytes() + 4 * keys_bytes(); }
  constexpr int own_stride() const { return own_dims() * element + 16; }
  constexpr int stage_bytes() const { return 2 * fragment_keys() * own_stride(); }
  constexpr int least_decode_bytes() const { return 2 * kAttendWarps * stage_bytes(); }
  constexpr int tiles_bytes() const {
    const int prefill = prefill_bytes(), decode = least_decode_bytes();
    return prefill > decode || parts() == 1 ? prefill : decode;
  }
  // Behind them, of wide heads: what the warps of a pair tell each other, 16 bytes a thread and
  // eight keys. Decode has two such places of 16 keys, so that one barrier a turn is enough.
  static constexpr int kExchangeTile = 16 * kAttendThreads;
  constexpr int bytes() const {
    const int prefill = tile_keys / 8, tiles = prefill > 4 ? prefill : 4;
    return tiles_bytes() + (parts() > 1 ? tiles * kExchangeTile : 0);
  }

  // Of a thread for each 16-row tile: for two rows a maximum and, twice, sums of weights and
  // values, of which each tile of 8 dimensions has two.
  constexpr int tile_carry_floats() const { return 2 + 2 * (2 + own_dims() / 2); }
  constexpr int row_tiles() const { return tile_rows * parts() / (16 * kAttendWarps); }
  constexpr int carry_floats() const { return row_tiles() * tile_carry_floats(); }
};

// Of attend_simt.cu, all in f32: a tile of queries, one of keys and one of values.
struct SimtShared {
  int head_dim;

  static constexpr int kLanes = kAttendThreads / kDecodeTileRows;  // of a row
  constexpr int keys() const { return head_dim > 256 ? 8 : 32; }   // of a tile
  constexpr int quads() const { return (head_dim + 3) / 4; }       // of dimensions
  constexpr int own_quads() const { return (quads() + kLanes - 1) / kLanes; }
  constexpr int stride() const { return 4 * quads() + 4; }
  constexpr int tile_floats() const { return keys() * stride(); }
  constexpr int bytes() const { return 4 * (kDecodeTileRows * stride() + 2 * tile_floats()); }
  // Of a thread: a maximum and, twice, the sums of weights and values.
  constexpr int carry_floats() const { return 1 + 2 * (1 + 4 * own_quads()); }
  // `narrow`: 16-bit queries over a cache of their type or of fp8.
  constexpr int carry_keys(bool narrow) const {
    return narrow && head_dim <= 128 ? kCarryKeys : kF32CarryKeys;
  }
};

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_SHARED_CUH_
