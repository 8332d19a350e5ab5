// Many query rows of a sequence against its keys: four warps share tiles of keys and values, each
// warp owns its rows (of wide heads each pair of warps). Two stages: the copies of the next tile
// run while this one is computed.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM80_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM80_CUH_

#include "src/ops/paged_attention/cuda/non_finite.cuh"
#include "src/ops/paged_attention/cuda/token_scales_sm80.cuh"

namespace xla_gpu::paged_attention {

static_assert(kParts == 1 || kRowTiles == 1);       // a group's exchange has room for no more
inline constexpr int kScaleAt = kCacheStride - 16;  // of a row of keys or values
inline constexpr int kCarryTiles = (kTileCarryKeys + kTileKeys - 1) / kTileKeys;

struct PrefillShared {
  long long offsets[2][kTileKeys];  // where the keys of a tile lie in the cache; -1: zeros
  float row_scale[kTileRows];
  Visible all;  // keys that every row of the tile sees
  bool found;   // values that are not finite, among keys that some row does not see
};

// Starts the copies of one tile of keys and values.
__device__ __forceinline__ void CopyTile(const Params& p, const long long* offsets,
                                         const char* keys, const char* values,
                                         unsigned shared_keys) {
  constexpr int kCopies = kTileKeys * kChunks;
#pragma unroll
  for (int i = threadIdx.x; i < kCopies; i += kAttendThreads) {
    const int key = i / kChunks, chunk = i % kChunks;
    const bool read = offsets[key] >= 0;
    const long long offset = read ? offsets[key] : 0;
    const unsigned shared = shared_keys + key * kCacheStride;
    CopyChunk(shared, keys + offset, chunk, read);
    CopyChunk(shared + kKeysBytes, values + offset, chunk, read);
  }
}

// One warp's logits of 16 * kRowTiles rows and kTileKeys keys.
__device__ __forceinline__ void DotProducts(float (&s)[kRowTiles][kTileKeys / 8][4], unsigned query,
                                            unsigned keys) {
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    QueryOperand a[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) QueryFragment(a[m], query + m * 16 * kQueryStride, block);
#pragma unroll
    for (int n = 0; n < kTileKeys / kFragmentKeys; ++n) {
      unsigned b[4];
      KeyFragment<kCacheStride>(b, keys + n * kFragmentKeys * kCacheStride, block);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) AddLogits(s[m], n, a[m], b);
    }
  }
}

// o += weights * values.
__device__ __forceinline__ void AddValues(float (&o)[kRowTiles][kOutTiles][4],
                                          const float (&s)[kRowTiles][kTileKeys / 8][4],
                                          unsigned values) {
#pragma unroll
  for (int n = 0; n < kTileKeys / kFragmentKeys; ++n) {
    WeightOperand a[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) WeightFragment(a[m], s[m], n);
#pragma unroll
    for (int pair = 0; pair < kOutTiles / kValueTiles; ++pair) {
      unsigned b[kValueTiles][2];
      ValueFragment<kCacheStride>(b, values + n * kFragmentKeys * kCacheStride, pair);
#pragma unroll
      for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          AddProducts<kRoundedPrefill>(o[m][pair * kValueTiles + tile], a[m], b[tile]);
        }
      }
    }
  }
}

// Writes one row's elements that this thread holds: final ones, or partial sums.
__device__ __forceinline__ void WritePrefillRow(const Params& p, const Tile& tile, int row,
                                                const float (&o)[kOutTiles][4], int half,
                                                const RowState& state, const LogitFactor& logit) {
  const float sum = QuadSum(state.sum);
  if (row >= tile.num_rows) return;
  const float max_logit = MaxLogit(state);
  const bool first_lane = threadIdx.x % 4 == 0 && OwnPart() == 0;
  if (tile.splits > 1) {
    const long long at = PartialRow(p, tile, row);
    if (first_lane) {
      p.partial_max[at] = max_logit;
      p.partial_sum[at] = sum;
    }
    float* out = p.partial_out + at * kHeadDim;
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int d = DimOf(t, c);
        if (d < kHeadDim) out[d] = o[t][2 * half + c];
      }
    }
    return;
  }

  const long long query_row = QueryRow(p, tile, row);
  const RowEnd end = FinishRow(p, tile, query_row, logit, max_logit, sum);
  if (HasLse(p) && first_lane) p.lse[query_row] = end.lse;
  Out* out = static_cast<Out*>(p.out) + query_row * kHeadDim;
  // Pairs of neighbours go out together: (t, 0) and (t, 1), of adjacent tiles (t, c) and (t + 1,
  // c).
#pragma unroll
  for (int t = 0; t < kOutTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if ((kAdjacentTiles ? t % 2 : c) != 0) continue;
      const int d = DimOf(t, c);
      const float x = end.Value(o[t][2 * half + c]);
      const float y = end.Value(kAdjacentTiles ? o[kAdjacentTiles ? t + 1 : t][2 * half + c]
                                               : o[t][2 * half + 1]);
      if constexpr (kHeadDim % 2 == 0 && sizeof(Out) == 2) {
        if (d < kHeadDim) *reinterpret_cast<unsigned*>(out + d) = Pack2<Out>(x, y);
      } else if constexpr (kHeadDim % 2 == 0) {
        if (d < kHeadDim) *reinterpret_cast<float2*>(out + d) = make_float2(x, y);
      } else {
        if (d < kHeadDim) out[d] = FromFloat<Out>(x);
        if (d + 1 < kHeadDim) out[d + 1] = FromFloat<Out>(y);
      }
    }
  }
}

// True if the item must be run again, carefully: only f32 may.
template <typename FetchNext>
__device__ __forceinline__ bool RunPrefill(const Params& p, const Tile& tile, bool careful,
                                           FetchNext fetch_next, char* shared,
                                           PrefillShared& extra) {
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp_row = Group() * (16 * kRowTiles);
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const char* keys = p.k_cache + tile.head * p.head_stride;
  const char* values = p.v_cache + tile.head * p.head_stride;
  const unsigned query_tile =
      SharedAddress(shared) + warp_row * kQueryStride + FirstDim() * kOperandBytes;
  const unsigned cache_tiles = SharedAddress(shared) + kQueryBytes;
  const unsigned exchange = SharedAddress(shared) + kTilesBytes;
  const unsigned own_dims = FirstDim() * static_cast<unsigned>(sizeof(Cache));

  const int first = tile.key_begin / kTileKeys;
  const int end = tile.key_end > tile.key_begin ? (tile.key_end - 1) / kTileKeys + 1 : first;

  const auto page_of = [&](int t) {
    return tid < kTileKeys ? PageOf(p, tile, t * kTileKeys + tid) : -1;
  };
  [[maybe_unused]] long long scale_index = -1;  // of the thread's key of the tile to be copied
  const auto put_offsets = [&](int t, int page) {
    if (tid < kTileKeys) {
      const int key = t * kTileKeys + tid;
      const long long offset = KeyOffset(p, tile, key, page);
      extra.offsets[t % 2][tid] = offset;
      if (kTokenScales) scale_index = offset < 0 ? -1 : TokenScaleIndex(p, tile, key, page);
    }
  };
  const auto copy = [&](int t) {
    const unsigned to = cache_tiles + t % 2 * (2 * kKeysBytes);
    CopyTile(p, extra.offsets[t % 2], keys, values, to);
    if (kTokenScales && tid < kTileKeys) {
      CopyTokenScales(p, scale_index, to + tid * kCacheStride + kScaleAt, kKeysBytes);
    }
    CommitCopies();
  };

  // Start loading the queries, and the first tile.
  LoadQuery(p, tile, logit.negate, shared, extra.row_scale);
  extra.found = false;
  extra.all = SeenByAll(p, tile);
  put_offsets(first, page_of(first));
  __syncthreads();
  if (first < end) copy(first);
  int page = page_of(first + 1);
  fetch_next();

  // Prepare the rows.
  RowState rows[kRowTiles][2];
  Visible visible[kRowTiles][2];
  float cap_in[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + m * 16 + h * 8 + lane / 4;
      const float scale = kScaledQuery ? extra.row_scale[row] : 1.0f;
      visible[m][h] = VisibleKeys(p, tile, row);
      rows[m][h] = MakeRowState(logit, scale);
      cap_in[m][h] = FactorOfRow(logit.cap_in, scale);
    }
  }
  // What every row of the warp sees, and what some row sees.
  const Visible first_row = VisibleKeys(p, tile, warp_row);
  Visible last_row = VisibleKeys(p, tile, warp_row + 16 * kRowTiles - 1);
  if (warp_row >= tile.num_rows) last_row.end = 0;  // no row: this warp only helps to copy

  const auto has_hidden = [&](int t) {
    return (kSplit && careful) || t * kTileKeys < extra.all.begin ||
           (t + 1) * kTileKeys > extra.all.end;
  };
  const bool carries = end - first > kCarryTiles;
  const auto carry = [&] { return MakeCarry(p, kAttendThreads, kCarryFloats); };
  float o[kRowTiles][kOutTiles][4] = {};
  for (int t = first; t < end; ++t) {
    // Wait for the tile, and start loading the next.
    put_offsets(t + 1, page);
    WaitCopies<0>();
    __syncthreads();  // tile t is here for all, and nobody still computes on tile t - 1
    if (t + 1 < end) copy(t + 1);
    page = page_of(t + 2);
    const unsigned tile_keys = cache_tiles + t % 2 * (2 * kKeysBytes);
    if (has_hidden(t)) {
      if (ZeroNonFinite<kTileKeys, kPadded * sizeof(Cache), kCacheStride>(tile_keys + kKeysBytes,
                                                                          tid, kAttendThreads)) {
        extra.found = true;
      }
      __syncthreads();
    }

    const int key0 = t * kTileKeys;
    if (key0 < last_row.end && key0 + kTileKeys > first_row.begin) {
      float s[kRowTiles][kTileKeys / 8][4] = {};
      DotProducts(s, query_tile, tile_keys + own_dims);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if constexpr (kSplit) {
          RepairLogits<kCacheStride>(s[m], tile_keys + own_dims, [&](int h, int d) {
            const int row = m * 16 + h * 8 + lane / 4;
            return LoadShared<float>(query_tile + row * kQueryStride + d * 4);
          });
        }
        AddParts(s[m], exchange);
        ScaleLogits<kCacheStride>(s[m], tile_keys + kScaleAt);
      }

      // Softmax.
      const bool mask = key0 < last_row.begin || key0 + kTileKeys > first_row.end;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if constexpr (SOFT_CAP) Cap(s[m], cap_in[m]);
        if (mask) Mask(s[m], key0, visible[m]);
        float rescale[2];
        Weigh(s[m], rows[m], rescale);
#pragma unroll
        for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) o[m][i][j] *= rescale[j / 2];
        }
        ScaleWeights<kCacheStride>(s[m], tile_keys + kKeysBytes + kScaleAt, key0, visible[m]);
      }

      AddValues(o, s, tile_keys + own_dims + kKeysBytes);
    }
    if (carries && ((t - first) % kCarryTiles == kCarryTiles - 1 || t + 1 == end)) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        PutCarry(carry(), m, t - first < kCarryTiles, rows[m], o[m]);
      }
    }
  }

  // Finish the sums.
  WaitCopies<0>();  // the query's, if there was no tile
  if (carries) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) TakeCarry(carry(), m, rows[m], o[m]);
  }
  if constexpr (kSplit) {
    bool in_doubt = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int row = warp_row + m * 16 + lane / 4;
      const bool exists[2] = {row < tile.num_rows, row + 8 < tile.num_rows};
      in_doubt |= InDoubt(o[m], exists);
    }
    if (!careful && __syncthreads_or(in_doubt) != 0) return true;
  }
  if (extra.found) {
    for (int t = first; t < end; ++t) {
      if (!has_hidden(t)) continue;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        AddNonFinite(p, tile, t * kTileKeys, kTileKeys, visible[m], rows[m], o[m]);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WritePrefillRow(p, tile, warp_row + m * 16 + h * 8 + lane / 4, o[m], h, rows[m][h],
                      MakeLogitFactor(p, tile.head));
    }
  }
  return false;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM80_CUH_
