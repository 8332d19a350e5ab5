// paged_attention, last launch, on tensor cores: queries over caches of the same type, and bf16 or
// f16 queries over caches of fp8.
//
// Defines: QUERY_TYPE, CACHE_TYPE, OUT_TYPE (BF16, F16, E4M3, E5M2, float), HEAD_DIM,
// SOFT_CAP (0: none, 1, 2: with the exact tanh), PLAIN (1: as tile.cuh says), TILE_ROWS (16 to
// 128), TILE_KEYS (a multiple of 16, of f32 of 8), MIN_BLOCKS (an SM should hold), BEHIND_PREFILL
// (1: a launch before this one has taken the prefill items, and left some), BEHIND_DECODE (1: one
// has taken the decode items); REDO_ONLY (such a launch has left none but those that are to be done
// again) or not, TOKEN_SCALES (tile.cuh) or not.
#include "src/ops/paged_attention/cuda/decode_sm80.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm80.cuh"

namespace xla_gpu::paged_attention {

// Whose tiles there are. Behind a launch that has taken the prefill items those that it has left go
// decode's way, 16 rows at a time: they are few. Behind a decode launch its items are tokens that
// several sequences claim: seldom, and prefill's way is right for them too.
#ifdef REDO_ONLY
inline constexpr bool kPrefills = false, kDecodes = true;
#else
inline constexpr bool kPrefills = true, kDecodes = BEHIND_DECODE == 0;
#endif

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
    const bool prefills =
        kPrefills && (!kDecodes || (tile.kind == kPrefillItem && tile.again == 0));
    const auto run = [&](const Tile& of, bool careful, auto fetch_once) {
      if constexpr (!kPrefills) return RunDecode(p, of, careful, fetch_once, tiles, extra.decode);
      if constexpr (!kDecodes) return RunPrefill(p, of, careful, fetch_once, tiles, extra.prefill);
      return prefills ? RunPrefill(p, of, careful, fetch_once, tiles, extra.prefill)
                      : RunDecode(p, of, careful, fetch_once, tiles, extra.decode);
    };
    const int rows = BEHIND_PREFILL ? tile.num_rows : 1;  // once, but for the launch before
    const int tile_rows = prefills ? kTileRows : kDecodeTileRows;
    for (int row = 0; row < rows; row += tile_rows) {
      if (row > 0) __syncthreads();
      Tile part = tile;
      if (BEHIND_PREFILL) {
        part.first_row += row;
        part.num_rows = min(tile.num_rows - row, tile_rows);
      }
      bool careful = false;
      const auto fetch_once = [&] {
        if (row == 0 && !careful) fetch_next();
      };
      while (run(part, careful, fetch_once)) careful = true;
      if constexpr (kHeadDim != kPadded) {  // queries and sums lay where the stages' padding is
        __syncthreads();
        ZeroPadding(tiles, kTilesBytes);
      }
    }
  });
}

}  // namespace xla_gpu::paged_attention
