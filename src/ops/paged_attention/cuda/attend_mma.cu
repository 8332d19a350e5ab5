// paged_attention, last launch, on tensor cores: queries over caches of the same type, and bf16 or
// f16 queries over caches of fp8.
//
// Defines: QUERY_TYPE, CACHE_TYPE, OUT_TYPE (BF16, F16, E4M3, E5M2, float), HEAD_DIM,
// SOFT_CAP (0: none, 1, 2: with the exact tanh), TILE_ROWS (16 to 128), TILE_KEYS (a multiple of
// 16, of f32 of 8), MIN_BLOCKS (an SM should hold), BEHIND_PREFILL (1: a launch before this one has
// taken the prefill items, and left some), BEHIND_DECODE (1: one has taken the decode items);
// REDO_ONLY (such a launch has left none but those that are to be done again) or not, TOKEN_SCALES
// (tile.cuh) or not.
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
    // Behind a decode launch its items are tokens that several sequences claim: seldom, and
    // prefill's way is right for them too.
    if (BEHIND_DECODE || tile.kind == kPrefillItem) {
      for (int row = 0; row < tile.num_rows; row += kTileRows) {  // once, but for the launch before
        if (row > 0) __syncthreads();
        Tile part = tile;
        part.first_row += row;
        part.num_rows = min(tile.num_rows - row, kTileRows);
        bool careful = false;
        const auto fetch_once = [&] {
          if (row == 0 && !careful) fetch_next();
        };
        while (RunPrefill(p, part, careful, fetch_once, tiles, extra.prefill)) careful = true;
      }
    } else {
      bool careful = false;
      const auto fetch_once = [&] {
        if (!careful) fetch_next();
      };
      while (RunDecode(p, tile, careful, fetch_once, tiles, extra.decode)) careful = true;
    }
    if constexpr (kHeadDim != kPadded) {  // queries and sums lay where the stages' padding is
      __syncthreads();
      ZeroPadding(tiles, kTilesBytes);
    }
  });
}

}  // namespace xla_gpu::paged_attention
