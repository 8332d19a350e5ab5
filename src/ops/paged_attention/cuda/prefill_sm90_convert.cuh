// The warps of the Hopper prefill kernel that load from a cache of fp8: each brings some rows of
// every tile, and makes f16 of them, exactly, before the matrix instructions read them: once for
// all rows of a piece.
//
// A lane copies 16 bytes at a time to a place of its own, and takes them from there once they are
// here, so that no other thread is waited for. What the piece does not see becomes zeros.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CONVERT_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CONVERT_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_load.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kWarpRows = kKeys / kLoadWarps;  // of a tile
static_assert(!kConverts || (kKeys == kRows && !BOXES));
inline constexpr int kRowCopies = kHeadDim / 16;          // of 16 bytes, a lane each
inline constexpr int kCopyRows = 32 / kRowCopies;         // that a warp copies at once
inline constexpr int kCopies = kWarpRows / kCopyRows;     // of a lane: the warp's rows
inline constexpr int kCopyStride = kLoadWarps * 32 * 16;  // between a lane's copies
// So many tiles' keys and values are under way before one is converted.
inline constexpr int kTilesAhead = Shared::kRawBytes / (2 * kCopies * kCopyStride);

// Where this lane's copies of some keys or values lie.
__device__ __forceinline__ unsigned RawPlace(Shared& shared, int ring, bool is_value) {
  return SharedAddress(shared.raw) + (2 * ring + is_value) * kCopies * kCopyStride +
         (threadIdx.x - kComputeWarps * 32) * 16;
}

// Starts to copy the warp's rows. `offset`: of row lane % kWarpRows from `base`, or -1 for zeros.
__device__ __forceinline__ void CopyRaw(unsigned raw, const char* base, long long offset) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const long long row = __shfl_sync(kAllLanes, offset, i * kCopyRows + lane / kRowCopies);
    CopyAsync<16>(raw + i * kCopyStride, base + max(row, 0ll) + lane % kRowCopies * 16, row >= 0);
  }
  CommitCopies();
}

// Makes 0 of what is not finite; true if there was such.
__device__ __forceinline__ bool ZeroNonFiniteRaw(uint4 (&x)[kCopies]) {
  unsigned found = 0;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const uint4 mask = {NonFiniteMask<Cache>(x[i].x), NonFiniteMask<Cache>(x[i].y),
                        NonFiniteMask<Cache>(x[i].z), NonFiniteMask<Cache>(x[i].w)};
    found |= mask.x | mask.y | mask.z | mask.w;
    x[i].x &= ~mask.x, x[i].y &= ~mask.y, x[i].z &= ~mask.z, x[i].w &= ~mask.w;
  }
  return found != 0;
}

// Makes f16 of a lane's copies, in the tile whose rows of this warp begin at `rows`.
__device__ __forceinline__ void Convert(const uint4 (&x)[kCopies], unsigned rows) {
  const int lane = threadIdx.x % 32, copy = lane % kRowCopies;
  // 16 elements are two pieces. Lanes of the second panel store the latter one first: places in
  // both panels are in the same banks.
  const int later = copy / 4;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int row = i * kCopyRows + lane / kRowCopies;
    const auto store = [&](int piece, unsigned a, unsigned b) {
      const uint4 wide = {F8PairToF16Pair<Cache>(a & 0xffffu), F8PairToF16Pair<Cache>(a >> 16),
                          F8PairToF16Pair<Cache>(b & 0xffffu), F8PairToF16Pair<Cache>(b >> 16)};
      StoreShared(rows + PlaceInTile(row, piece), wide);
    };
    store(2 * copy + later, later != 0 ? x[i].z : x[i].x, later != 0 ? x[i].w : x[i].y);
    store(2 * copy + (later ^ 1), later != 0 ? x[i].x : x[i].z, later != 0 ? x[i].y : x[i].w);
  }
}

// Scales kWarpRows rows of bf16 queries, as this warp's CopyRows has brought them, to f16's range,
// and leaves the factors that undo it at `scales`.
__device__ __forceinline__ void ScaleQueries(unsigned rows, bool negate, float* scales) {
  const int first = threadIdx.x % 32 / 8, piece = threadIdx.x % 8;
#pragma unroll 2
  for (int i = first; i < kWarpRows; i += 4) {
    float x[kPanels][8];
    float largest = 0.0f;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const auto pairs = LoadShared<Vector<unsigned, 4>>(rows + PlaceInTile(i, panel * 8 + piece));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[panel][j] = ToFloat(BF16{static_cast<unsigned short>(pairs.x[j / 2] >> j % 2 * 16)});
        largest = fmaxf(largest, fabsf(x[panel][j]));
      }
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    const RowScale scale = ScaleOfRow(largest);
    const float down = negate ? -scale.down : scale.down;
    if (piece == 0) scales[i] = scale.up;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const auto pair = [&](int j) {
        return Pack2<Operand>(x[panel][j] * down, x[panel][j + 1] * down);
      };
      StoreShared(rows + PlaceInTile(i, panel * 8 + piece),
                  uint4{pair(0), pair(2), pair(4), pair(6)});
    }
  }
}

// A warp of kLoadWarps: brings its rows of queries, keys and values of each piece. The first one
// also takes the pieces, two ahead.
__device__ __forceinline__ void LoadConverted(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32, warp = Uniform(threadIdx.x / 32) - kComputeWarps;
  const unsigned warp_place = warp * (kWarpRows / 8 * kGroupBytes);
  Pieces pieces(p);
  const auto take = [&] {
    const bool more = pieces.Take(p, shared);
    pieces.Ask(p);
    return more;
  };
  bool more = warp == 0 && take() && take();
  Place<kStages> stage;  // of keys, and of values
  Place<kQueries> query;
  for (Place<kSlots> at;; at.Next(), query.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    const Tile& tile = slot.tile;
    const KeyTiles range = TilesOf(tile);
    const int* const table = p.block_tables + static_cast<long long>(tile.seq) * p.max_pages;
    const auto key_of = [&](int t) {
      return range.first_key + t * kKeys + warp * kWarpRows + lane % kWarpRows;
    };
    const auto look_up = [&](int t) {
      const int key = min(max(key_of(t), tile.key_begin), tile.key_end - 1);
      return LoadIndex(table + PageIndex(p, key));
    };
    int page = 0;
    // Of the lane's key of tile t, of which `page` is; looks up that of the tile before.
    const auto next_offset = [&](int t) {
      const long long offset = KeyOffset(p, tile, key_of(t), page);
      if (t > 0) page = look_up(t - 1);
      return offset;
    };
    const char* const keys = p.k_cache + tile.head * p.head_stride;
    const char* const values = p.v_cache + tile.head * p.head_stride;

    // Start to copy the queries, and the first tiles.
    if (range.count > 0) page = look_up(range.count - 1);
    const int row = warp * kWarpRows + lane % kWarpRows;
    const unsigned long long from[1] = {
        row < tile.num_rows
            ? reinterpret_cast<unsigned long long>(static_cast<const Query*>(p.query) +
                                                   QueryRow(p, tile, row) * kHeadDim)
            : 0};
    const unsigned query_rows = SharedAddress(shared.query[query.index]) + warp_place;
    Wait(At(shared.query_empty[0], query), query.parity ^ 1);
    CopyRows<kWarpRows>(from, query_rows);
    CommitCopies();
#pragma unroll
    for (int ahead = 0; ahead < kTilesAhead; ++ahead) {
      const long long offset = next_offset(range.count - 1 - ahead);
      CopyRaw(RawPlace(shared, ahead, false), keys, offset);
      CopyRaw(RawPlace(shared, ahead, true), values, offset);
    }
    if (more) more = take();

    // The queries.
    WaitCopies<2 * kTilesAhead>();
    const bool negate = MakeLogitFactor(p, tile.head).negate;
    if constexpr (kScaledQuery) {
      ScaleQueries(query_rows, negate, shared.row_scale[query.index] + warp * kWarpRows);
    } else if (negate) {
      __syncwarp();
      for (int i = lane / kPieces; i < kWarpRows; i += kRowStep) {
        Negate(shared.query[query.index] + warp_place + PlaceInTile(i, lane % kPieces));
      }
    }
    FenceForMatrixReads();
    Arrive(At(shared.query_full[0], query));

    // The keys and values.
    const Visible by_all = SeenByAll(p, tile);
    int ring = 0;  // the tile's place among those under way
    for (int t = range.count - 1; t >= 0; --t) {
      const long long offset = next_offset(t - kTilesAhead);
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {  // keys, then values
        const bool is_value = half == 1;
        const unsigned rows =
            SharedAddress(is_value ? shared.values[stage.index] : shared.keys[stage.index]) +
            warp_place;
        const int from = range.first_key + t * kKeys;
        const int begin = max(from, tile.key_begin), end = min(from + kKeys, tile.key_end);
        const bool hidden = is_value && (begin < by_all.begin || end > by_all.end);
        // All at once into registers, so that the copies of another tile start before this one's
        // conversion.
        const unsigned raw = RawPlace(shared, ring, is_value);
        WaitCopies<2 * kTilesAhead - 1>();
        uint4 x[kCopies];
#pragma unroll
        for (int i = 0; i < kCopies; ++i) x[i] = LoadShared<uint4>(raw + i * kCopyStride);
        CopyRaw(raw, is_value ? values : keys, offset);
        // The piece is not done before its values are here.
        if (hidden && ZeroNonFiniteRaw(x)) slot.zeroed = 1;
        Wait(is_value ? At(shared.values_empty, stage) : At(shared.keys_empty, stage),
             stage.parity ^ 1);
        Convert(x, rows);
        FenceForMatrixReads();
        __syncwarp();
        if (lane == 0) {
          Arrive(is_value ? At(shared.values_full, stage) : At(shared.keys_full, stage));
        }
      }
      stage.Next();
      if (++ring == kTilesAhead) ring = 0;
    }
    Arrive(At(shared.slot_empty, at));
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_CONVERT_CUH_
