// Prefill on Hopper: as prefill.cuh, but the warpgroup's matrix instructions read keys and values
// from swizzled shared memory. While one half of the rows is in softmax, the tensor cores work on
// the other half, and on the other block of the SM.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WGMMA_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WGMMA_CUH_

#include "src/ops/paged_attention/cuda/prefill.cuh"
#include "src/ops/paged_attention/cuda/wgmma.cuh"

namespace xla_gpu::paged_attention {

inline constexpr int kHalves = kTileRows / 64;  // of 64 query rows
inline constexpr int kPanels = kHeadDim / 64;
inline constexpr int kQueryPanelBytes = kTileRows * 128;
inline constexpr int kKeyPanelBytes = kTileKeys * 128;
inline constexpr int kSwizzledKeysBytes = kPanels * kKeyPanelBytes;
inline constexpr int kSwizzledBytes = kPanels * kQueryPanelBytes + 4 * kSwizzledKeysBytes;
static_assert(kHeadDim % 64 == 0 && kTileKeys == 64 && !kOneByte && !kScaledQuery);
static_assert(kSwizzledBytes <= kTilesBytes);

__device__ __forceinline__ void CopySwizzledTile(const long long* offsets, const char* keys,
                                                 const char* values, unsigned shared) {
  // A thread's chunk is the same in all of its keys, and so is its swizzled place if the keys are
  // multiples of eight apart.
  constexpr int kStep = kAttendThreads / kChunks;
  static_assert(kAttendThreads % kChunks == 0 && kTileKeys % kStep == 0);
  const int chunk = threadIdx.x % kChunks, key0 = threadIdx.x / kChunks;
  keys += chunk * 16;
  values += chunk * 16;
  shared += chunk / 8 * kKeyPanelBytes;
  const unsigned place = SwizzledChunk(key0, chunk % 8);
#pragma unroll
  for (int i = 0; i < kTileKeys / kStep; ++i) {
    const long long offset = offsets[key0 + i * kStep];
    const bool read = offset >= 0;
    const unsigned to = shared + (kStep % 8 == 0 ? place + i * kStep * 128
                                                 : SwizzledChunk(key0 + i * kStep, chunk % 8));
    CopyAsync<16>(to, keys + offset, read);
    CopyAsync<16>(to + kSwizzledKeysBytes, values + offset, read);
  }
}

template <typename FetchNext>
__device__ __forceinline__ void RunPrefillWgmma(const Params& p, const Tile& tile,
                                                FetchNext fetch_next, char* shared,
                                                PrefillShared& extra) {
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const char* keys = p.k_cache + tile.head * p.head_stride;
  const char* values = p.v_cache + tile.head * p.head_stride;
  const unsigned query_tile = SharedAddress(shared);
  const unsigned cache_tiles = query_tile + kPanels * kQueryPanelBytes;

  const int first = tile.key_begin / kTileKeys;
  const int end = tile.key_end > tile.key_begin ? (tile.key_end - 1) / kTileKeys + 1 : first;
  const auto page_of = [&](int t) {
    return tid < kTileKeys ? PageOf(p, tile, t * kTileKeys + tid) : -1;
  };
  const auto put_offsets = [&](int t, int page) {
    if (tid < kTileKeys) {
      extra.offsets[t % 2][tid] = KeyOffset(p, tile, t * kTileKeys + tid, page);
    }
  };
  const auto copy = [&](int t) {
    CopySwizzledTile(extra.offsets[t % 2], keys, values,
                     cache_tiles + t % 2 * (2 * kSwizzledKeysBytes));
    CommitCopies();
  };

  // Start loading the queries, and the first tile.
  CopyQuery(p, tile, logit.negate, shared, [](int row, int chunk) {
    return chunk / 8 * kQueryPanelBytes + SwizzledChunk(row, chunk % 8);
  });
  extra.found = false;
  put_offsets(first, page_of(first));
  put_offsets(first + 1, page_of(first + 1));
  __syncthreads();
  if (first < end) copy(first);
  int page = page_of(first + 2);
  fetch_next();

  // Prepare the rows.
  RowState rows[kHalves][2];
  Visible visible[kHalves][2];
  const float cap_in[2] = {logit.cap_in, logit.cap_in};
#pragma unroll
  for (int m = 0; m < kHalves; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      visible[m][h] = VisibleKeys(p, tile, m * 64 + warp * 16 + h * 8 + lane / 4);
      rows[m][h] = MakeRowState(logit, 1.0f);
    }
  }
  const Visible all = SeenByAll(p, tile);
  const auto has_hidden = [&](int t) {
    return t * kTileKeys < all.begin || (t + 1) * kTileKeys > all.end;
  };

  const bool carries = end - first > kCarryTiles;
  const Carry carry = MakeCarry(p, kAttendThreads, kCarryFloats);
  float o[kHalves][kOutTiles][4] = {};
  for (int t = first; t < end; ++t) {
    // Wait for the tile.
    WaitCopies<0>();
    FenceForMatrixReads();
    __syncthreads();  // tile t is here for all, and nobody still computes on tile t - 1

    const unsigned tile_keys = cache_tiles + t % 2 * (2 * kSwizzledKeysBytes);
    const unsigned tile_values = tile_keys + kSwizzledKeysBytes;
    const int key0 = t * kTileKeys;
    const bool mask = has_hidden(t);

    // Logits of both halves.
    float s[kHalves][kTileKeys / 8][4];
    WarpgroupFence();
#pragma unroll
    for (int m = 0; m < kHalves; ++m) {
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        const unsigned in_panel = block % 4 * 32;
        WarpgroupMma<Operand>(
            s[m],
            PanelDescriptor(query_tile + block / 4 * kQueryPanelBytes + m * 64 * 128 + in_panel),
            PanelDescriptor(tile_keys + block / 4 * kKeyPanelBytes + in_panel), block > 0);
      }
      WarpgroupCommit();
    }
    // In the shadow of the matrix instructions: the next tile's copies, and where the one after it
    // lies.
    if (t + 1 < end) copy(t + 1);
    put_offsets(t + 2, page);
    page = page_of(t + 3);
    if (mask) {
      if (ZeroNonFinite<kPanels * kTileKeys, 128, 128>(tile_values, tid, kAttendThreads)) {
        extra.found = true;
      }
      FenceForMatrixReads();
      __syncthreads();
    }

    // Softmax of a half, then its values: they run while the next half is in softmax.
#pragma unroll
    for (int m = 0; m < kHalves; ++m) {
      // This half's logits; the newest group may still run, unless sums of its own wait for it.
      WarpgroupWait<kHalves == 1 || kRoundedPrefill ? 0 : 1>();
      if constexpr (SOFT_CAP) Cap(s[m], cap_in);
      if (mask) Mask(s[m], key0, visible[m]);
      float rescale[2];
      Weigh(s[m], rows[m], rescale);
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) o[m][i][j] *= rescale[j / 2];
      }
      unsigned a[kTileKeys / 16][4];
#pragma unroll
      for (int n = 0; n < kTileKeys / 16; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&x)[4] = s[m][2 * n + i / 2];
          a[n][i] = Pack2<Operand>(x[i % 2 * 2], x[i % 2 * 2 + 1]);
        }
      }
      const auto values = [&](int panel, int n) {
        return PanelDescriptor(tile_values + panel * kKeyPanelBytes + n * 16 * 128);
      };
      if constexpr (kRoundedPrefill) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          float products[8][4] = {};
          HoldRegisters(products);
          WarpgroupFence();
#pragma unroll
          for (int n = 0; n < kTileKeys / 16; ++n) {
            WarpgroupMmaAdd<Operand>(products, a[n], values(panel, n));
          }
          WarpgroupCommit();
          WarpgroupWait<0>(products);
#pragma unroll
          for (int i = 0; i < 32; ++i) o[m][panel * 8 + i / 4][i % 4] += products[i / 4][i % 4];
        }
      } else {
        WarpgroupFence();
#pragma unroll
        for (int n = 0; n < kTileKeys / 16; ++n) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            WarpgroupMmaAdd<Operand>(&o[m][panel * 8], a[n], values(panel, n));
          }
        }
        WarpgroupCommit();
      }
    }
    WarpgroupWait<0>();
    if (carries && ((t - first) % kCarryTiles == kCarryTiles - 1 || t + 1 == end)) {
#pragma unroll
      for (int m = 0; m < kHalves; ++m) {
        PutCarry(carry, m, t - first < kCarryTiles, rows[m], o[m]);
      }
    }
  }

  // Finish the sums.
  WaitCopies<0>();  // the query's, if there was no tile
  if (carries) {
#pragma unroll
    for (int m = 0; m < kHalves; ++m) TakeCarry(carry, m, rows[m], o[m]);
  }
  if (extra.found) {
    for (int t = first; t < end; ++t) {
      if (!has_hidden(t)) continue;
#pragma unroll
      for (int m = 0; m < kHalves; ++m) {
        AddNonFinite(p, tile, t * kTileKeys, kTileKeys, visible[m], rows[m], o[m]);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kHalves; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WritePrefillRow(p, tile, m * 64 + warp * 16 + h * 8 + lane / 4, o[m], h, rows[m][h],
                      logit.factor);
    }
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_WGMMA_CUH_
