// The end of a call, by the blocks of attend themselves: split tiles are merged, those of a launch
// before by all blocks, others by the block that finishes the last split of the tile; and rows that
// no item writes (padding, and sequences whose lengths or pages are invalid) are filled. No block
// waits for another.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FINISH_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FINISH_CUH_

#include "src/ops/paged_attention/cuda/tile.cuh"

namespace xla_gpu::paged_attention {

// Adds `step` to `counter` when all that the threads which `sync` synchronises wrote is visible to
// the device; true for those with whose arrival `is_last` of the counter is: they see what the
// others wrote. One of them is the `leader`.
template <typename IsLast, typename Sync>
__device__ __forceinline__ bool ArriveLast(unsigned* counter, unsigned step, IsLast is_last,
                                           bool leader, Sync sync) {
  __shared__ bool last;
  sync();
  if (leader) {
    __threadfence();
    last = is_last(atomicAdd(counter, step) + step);
    __threadfence();
  }
  sync();
  return last;
}
// One of `count` arrivals.
template <typename Sync>
__device__ __forceinline__ bool ArriveLast(unsigned* counter, unsigned count, bool leader,
                                           Sync sync) {
  const auto is_last = [count](unsigned arrived) { return arrived == count; };
  return ArriveLast(counter, 1, is_last, leader, sync);
}
// The same for all threads of the block.
__device__ __forceinline__ bool ArriveLast(unsigned* counter, unsigned count) {
  return ArriveLast(counter, count, threadIdx.x == 0, [] { __syncthreads(); });
}

// Reads global memory that other SMs have written, past this one's L1.
template <typename T>
__device__ __forceinline__ T LoadPastL1(const float* from) {
  T to;
  if constexpr (sizeof(T) == 16) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    to.x[0] = x.x, to.x[1] = x.y, to.x[2] = x.z, to.x[3] = x.w;
  } else {
    to.x[0] = __ldcg(from);
  }
  return to;
}

// The factors of a block's warps' sums of values in a row's result, from their maxima and sums of
// weights; the result is 0 if this is false. If `write`, also writes what the row has besides its
// values.
template <int kWarps>
__device__ __forceinline__ bool WeighWarps(const Params& p, const Tile& tile, int row,
                                           const float (&of_max)[kWarps],
                                           const float (&of_sum)[kWarps], const LogitFactor& logit,
                                           bool write, float (&factors)[kWarps]) {
  float max = of_max[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) max = fmaxf(max, of_max[w]);
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    factors[w] = Exp2(Log2Weight(of_max[w], max, logit.factor));
    sum += of_sum[w] * factors[w];
  }
  if (tile.splits > 1) {
    if (write) {
      p.partial_max[PartialRow(p, tile, row)] = max;
      p.partial_sum[PartialRow(p, tile, row)] = sum;
    }
    return true;
  }
  const long long query_row = QueryRow(p, tile, row);
  const RowEnd end = FinishRow(p, tile, query_row, logit, max, sum);
  if (HasLse(p) && write) p.lse[query_row] = end.lse;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) factors[w] *= end.factor;
  return !end.sees_nothing;
}

// Merges the splits of a tile, always in the same order; kLanes of one of `warps` take a row. The
// partial results come from other SMs, so that they are read past this one's L1.
template <typename Out, int kHeadDim, int kLanes = 32>
__device__ __forceinline__ void MergeSplits(const Params& p, const Tile& tile, int warp,
                                            int warps) {
  constexpr int kRows = 32 / kLanes;
  constexpr int kVector = kHeadDim % 4 == 0 ? 4 : 1;  // dimensions of one load
  constexpr int kLoads = (kHeadDim / kVector + kLanes - 1) / kLanes;
  constexpr int kFitting = kLoads * kVector < 64 ? 64 / (kLoads * kVector) : 1;
  constexpr int kTogether = kFitting < 16 ? kFitting : 16;  // splits
  using Load = Vector<float, kVector>;
  const int lane = threadIdx.x % kLanes;
  const auto over_lanes = [](float x, auto combine) {
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
  };
  const auto dim_of = [&](int load) { return (load * kLanes + lane) * kVector; };
  const auto has = [&](int load) {
    return kHeadDim % (kLanes * kVector) == 0 || dim_of(load) < kHeadDim;
  };
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  for (int rows = warp * kRows; rows < tile.num_rows; rows += warps * kRows) {
    const int own_row = rows + static_cast<int>(threadIdx.x) % 32 / kLanes;
    const int row = min(own_row, tile.num_rows - 1);
    const long long first = PartialRow(p, tile, 0, row);
    float max = -Infinity(), sum = 0.0f;
    float values[kLoads][kVector] = {};
    for (int from = 0; from < tile.splits; from += kLanes) {
      const int count = min(kLanes, tile.splits - from);
      float own_max = -Infinity(), own_sum = 0.0f;  // of a split
      if (lane < count) {
        const long long at = first + static_cast<long long>(from + lane) * tile.rows;
        own_max = __ldcg(p.partial_max + at);
        own_sum = __ldcg(p.partial_sum + at);
      }
      const float before = max;
      max = fmaxf(max, over_lanes(own_max, [](float a, float b) { return fmaxf(a, b); }));
      const float weight = exp2f(Log2Weight(own_max, max, logit.factor));
      const float keep = exp2f(Log2Weight(before, max, logit.factor));
      sum = sum * keep + own_sum * weight;
      const float* partial =
          p.partial_out + (first + static_cast<long long>(from) * tile.rows) * kHeadDim;
      const long long step = static_cast<long long>(tile.rows) * kHeadDim;
      // Each kLanes from zero: what is lost does not grow with their number.
      float part[kLoads][kVector] = {};
#pragma unroll kTogether
      for (int i = 0; i < count; ++i) {
        const float w = __shfl_sync(kAllLanes, weight, i, kLanes);
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          if (!has(j)) continue;
          const Load x = LoadPastL1<Load>(partial + i * step + dim_of(j));
#pragma unroll
          for (int k = 0; k < kVector; ++k) part[j][k] += x.x[k] * w;
        }
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) values[j][k] = values[j][k] * keep + part[j][k];
      }
    }
    sum = over_lanes(sum, [](float a, float b) { return a + b; });

    const long long query_row = QueryRow(p, tile, row);
    const RowEnd end = FinishRow(p, tile, query_row, logit, max, sum);
    if (own_row != row) continue;  // there is no such row
    Out* const out = static_cast<Out*>(p.out) + query_row * kHeadDim;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (!has(j)) continue;
      Vector<Out, kVector> x;
#pragma unroll
      for (int k = 0; k < kVector; ++k) x.x[k] = FromFloat<Out>(end.Value(values[j][k]));
      StoreVector(out + dim_of(j), x);
    }
    if (HasLse(p) && lane == 0) p.lse[query_row] = end.lse;
  }
}

// What the prefill launch leaves of tiles that it has split: in the tile's counter of arrivals the
// number of pieces that are to be done again is below this unit, that of those done above it.
inline constexpr unsigned kAgainDone = 1u << 16;

// True for the threads of the block that does the last such piece of its tile.
__device__ __forceinline__ bool ArriveLastAgain(unsigned* counter) {
  const auto is_last = [](unsigned count) { return count / kAgainDone == count % kAgainDone; };
  return ArriveLast(counter, kAgainDone, is_last, threadIdx.x == 0, [] { __syncthreads(); });
}

// Merges those of which no piece is to be done again: by all warps of the launch behind it, since a
// block that merged its own would be long at it while others have nothing to do.
template <typename Out, int kHeadDim>
__device__ __forceinline__ void MergePrefill(const Params& p) {
  constexpr unsigned kTileWarps = 64;  // that share a tile
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  const unsigned total = p.header->num_merges * kv_heads * kTileWarps;
  const bool any_again = p.header->num_redo != 0;
  for (unsigned i = blockIdx.x * kAttendWarps + threadIdx.x / 32; i < total;
       i += gridDim.x * kAttendWarps) {
    const unsigned piece = i / kTileWarps;
    const Tile tile{p.items[p.merges[piece / kv_heads]], static_cast<int>(piece % kv_heads), 0};
    if (any_again && __ldcg(p.arrivals + PartialRow(p, tile, 0, 0)) % kAgainDone != 0) continue;
    MergeSplits<Out, kHeadDim, 16>(p, tile, static_cast<int>(i % kTileWarps), kTileWarps);
  }
}

// Sets `heads` query heads of a token from `first_head`, and their lse, by `threads` threads.
template <typename Out, int kHeadDim>
__device__ __forceinline__ void FillHeads(const Params& p, int token, int first_head, int heads,
                                          float out, float lse, int thread = threadIdx.x,
                                          int threads = blockDim.x) {
  const long long first_row = static_cast<long long>(token) * p.q_heads + first_head;
  Out* to = static_cast<Out*>(p.out) + first_row * kHeadDim;
  const int count = heads * kHeadDim;
  constexpr int kVector = 16 / sizeof(Out);
  if (reinterpret_cast<unsigned long long>(to) % 16 == 0 && count % kVector == 0) {
    Vector<Out, kVector> value;
#pragma unroll
    for (int i = 0; i < kVector; ++i) value.x[i] = FromFloat<Out>(out);
    for (int i = thread; i < count / kVector; i += threads) {
      reinterpret_cast<Vector<Out, kVector>*>(to)[i] = value;
    }
  } else {
    for (int i = thread; i < count; i += threads) to[i] = FromFloat<Out>(out);
  }
  if (!HasLse(p)) return;
  for (int i = thread; i < heads; i += threads) p.lse[first_row + i] = lse;
}

// Whether some sequence owns the row of query `token`.
__device__ inline bool IsOwned(const Params& p, int num_seqs, int token) {
  const auto has = [&](int s) {
    const SequenceInfo& info = p.sequences[s];
    return info.query_begin <= token && token < info.query_begin + info.query_len;
  };
  if (p.header->order == kContested) {
    for (int s = 0; s < num_seqs; ++s) {
      if (has(s)) return true;
    }
    return false;
  }
  int low = 0, high = num_seqs;
  while (low < high) {  // the first sequence whose end lies behind the token
    const int middle = (low + high) / 2;
    if (p.owner_end[middle] > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low < num_seqs && has(low);
}

// Whether an invalid sequence claims the row.
__device__ inline bool IsClaimed(const Params& p, int num_seqs, int token) {
  for (int s = 0; s < num_seqs; ++s) {
    if (p.state[s] == kInvalid && p.query_start_loc[s] <= token &&
        token < p.query_start_loc[s + 1]) {
      return true;
    }
  }
  return false;
}

// A fill item: the query heads of kv head `head` in kFillTokens tokens from `begin`, as far as no
// sequence owns them: NaN where an invalid sequence claims the row, else zeros. All threads.
template <typename Out, int kHeadDim>
__device__ __forceinline__ void FillUnowned(const Params& p, int begin, int head) {
  enum Verdict : char { kOwned, kPadding, kClaimed };
  __shared__ Verdict verdicts[kFillTokens];
  const int count = min(kFillTokens, p.tokens - begin);
  const int num_seqs = static_cast<int>(p.header->num_seqs);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    Verdict verdict = kOwned;
    if (!IsOwned(p, num_seqs, begin + i)) {
      const bool claimed = p.header->order != kProper && IsClaimed(p, num_seqs, begin + i);
      verdict = claimed ? kClaimed : kPadding;
    }
    verdicts[i] = verdict;
  }
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    if (verdicts[i] == kOwned) continue;
    const bool claimed = verdicts[i] == kClaimed;
    FillHeads<Out, kHeadDim>(p, begin + i, head * p.group_size, p.group_size,
                             claimed ? NaN() : 0.0f, claimed ? NaN() : -Infinity());
  }
}

// NaN to all rows of the sequences in which an item met a page out of range: by the last block, as
// other items of the sequence may have written rows since.
template <typename Out, int kHeadDim>
__device__ __forceinline__ void OverwriteBadPages(const Params& p) {
  if (!ArriveLast(&p.header->blocks_done, gridDim.x)) return;
  if (__ldcg(&p.header->any_bad_page) == 0) return;
  for (unsigned s = 0; s < p.header->num_seqs; ++s) {
    if (__ldcg(p.state + s) != kInvalid) continue;
    const SequenceInfo info = p.sequences[s];  // without rows if its lengths are invalid
    for (int i = 0; i < info.query_len; ++i) {
      FillHeads<Out, kHeadDim>(p, info.query_begin + i, 0, p.q_heads, NaN(), NaN());
    }
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FINISH_CUH_
