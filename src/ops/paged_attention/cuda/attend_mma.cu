// paged_attention, last launch, on tensor cores: bf16 or f16 queries over caches of the same type
// or of fp8.
//
// Defines: QUERY_TYPE, CACHE_TYPE, OUT_TYPE (BF16, F16, E4M3, E5M2, float), HEAD_DIM,
// SOFT_CAP (0: none, 1, 2: with the exact tanh), TILE_ROWS (64, 128), TILE_KEYS (a multiple of 16),
// MIN_BLOCKS (an SM should hold), BEHIND_PREFILL (1: a launch before this one has taken the prefill
// items, and left some).
#include "src/ops/paged_attention/cuda/decode.cuh"
#include "src/ops/paged_attention/cuda/prefill.cuh"

namespace xla_gpu::paged_attention {

extern "C" __global__ void __launch_bounds__(kAttendThreads, MIN_BLOCKS)
    paged_attention_attend(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char tiles[];
  __shared__ union {
    PrefillShared prefill;
    DecodeShared decode;
  } extra;
  ZeroPadding(tiles, kTilesBytes);
  __syncthreads();
  Attend<Out, kHeadDim, BEHIND_PREFILL != 0>(p, [&](const Tile& tile, auto fetch_next) {
    if (tile.kind == kPrefillItem) {
      // Once, but for the launch before, which of wide heads leaves one half of the rows.
      const bool half = kParts > 1 && tile.again != 0;
      const int begin = half ? (tile.again - 1) * kHalfRows : 0;
      const int end = half ? min(begin + kHalfRows, tile.num_rows) : tile.num_rows;
      for (int row = begin; row < end; row += kTileRows) {
        if (row > begin) __syncthreads();
        Tile part = tile;
        part.first_row += row;
        part.num_rows = min(end - row, kTileRows);
        RunPrefill(
            p, part,
            [&] {
              if (row == begin) fetch_next();
            },
            tiles, extra.prefill);
      }
    } else {
      RunDecode(p, tile, fetch_next, tiles, extra.decode);
    }
    if constexpr (kHeadDim != kPadded) {  // queries and sums lay where the stages' padding is
      __syncthreads();
      ZeroPadding(tiles, kTilesBytes);
    }
  });
}

}  // namespace xla_gpu::paged_attention
