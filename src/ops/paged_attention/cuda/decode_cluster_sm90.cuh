// Decode of few sequences on Hopper, where what counts is the time from the launch to the first key
// and from the last key to the result. A cluster of blocks has a kv head; its blocks take equal
// ranges of the line of the head's work (line.cuh), each as a block of decode_sm90.cuh does. Of a
// tile that a cut goes through each block that has a part finishes a share of the elements, which
// the others put into its shared memory. Each block looks at the lengths itself, so that nothing is
// launched before, and nothing goes through the workspace.
//
// A page out of range makes the sums of its tile NaN: parts are merged to NaN whatever the others
// are.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_CLUSTER_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_CLUSTER_SM90_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_compute.cuh"
#include "src/ops/paged_attention/cuda/decode_sm90_owners.cuh"

namespace xla_gpu::paged_attention::sm90 {

// What the call says of a lane's sequence.
struct ClusterLengths {
  int num_seqs;
  int begin;
  int end;
  int context;
};

__device__ __forceinline__ ClusterLengths ReadLengths(const Params& p, int lane_seq) {
  const int seq = min(lane_seq, p.max_seqs - 1);
  // Where the launch has not waited for the one before, the L1 may hold what an earlier call read.
  const auto load = [](const int* x) { return kManySeqs ? __ldcg(x) : LoadIndex(x); };
  return {load(p.num_seqs), load(p.query_start_loc + seq), load(p.query_start_loc + seq + 1),
          load(p.context_lens + seq)};
}

struct ClusterLoader : OwnerLoader {
  // Finds the tokens that no sequence owns.
  __device__ __forceinline__ void FindFills(const ClusterLengths& lengths, int num_seqs,
                                            bool valid) {
    bool owned = false, claimed = false;
#pragma unroll 1
    for (int s = 0; s < num_seqs; ++s) {
      const int begin = __shfl_sync(kAllLanes, lengths.begin, s);
      const int end = __shfl_sync(kAllLanes, lengths.end, s);
      const bool has = begin <= lane && lane < end;
      const bool of_valid = __shfl_sync(kAllLanes, static_cast<int>(valid), s) != 0;
      owned |= has && of_valid;
      claimed |= has && !of_valid;
    }
    shared.fill[lane] = lane >= p.tokens || owned ? 0 : claimed ? 2 : 1;
    if (lane == 0) shared.has_fills = 1;
  }

  // Gives the lanes the sequences that claim rows, in order; how many do: all that do have a lane
  // unless those are more than there are lanes.
  __device__ __forceinline__ int FindClaims(int num_seqs) {
    constexpr int kAtOnce = 4;  // loads of a lane that do not wait for each other
    int count = 0;
#pragma unroll 1
    for (int first = 0; first < num_seqs; first += 32 * kAtOnce) {
      int begin[kAtOnce], end[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int seq = min(first + i * 32 + lane, num_seqs - 1);
        begin[i] = LoadIndex(p.query_start_loc + seq);
        end[i] = LoadIndex(p.query_start_loc + seq + 1);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int seq = first + i * 32;  // lane 0's
        const bool claims = seq + lane < num_seqs && max(begin[i], 0) < min(end[i], p.tokens);
        for (unsigned rest = __ballot_sync(kAllLanes, claims); rest != 0; rest &= rest - 1) {
          if (lane == count++) lane_seq = seq + __ffs(static_cast<int>(rest)) - 1;
        }
      }
    }
    return Uniform(count);
  }

  // Of two clusters of a head each takes the sequences whose middle lies in its half of the line;
  // gives their length.
  __device__ __forceinline__ int TakeHalf(int half, int line) {
    const bool second = 2 * info.line_end - part.Length() >= line;
    const int cut = __reduce_max_sync(kAllLanes, second ? 0 : info.line_end);
    SequenceInfo of = {};
    if (second == (half == 1)) of = info, of.line_end -= half == 1 ? cut : 0;
    LookAt(0, of);
    return half == 1 ? line - cut : cut;
  }

  // Of a token of one sequence the line is known at once.
  __device__ __forceinline__ void RunToken(const SequenceInfo& info, int rank, int head) {
    const LinePart part = LinePartOf(p, info);
    const LineCuts cuts(RangesOf(p, kClusterBlocks, part.tile_length));
    if (rank < cuts.ranges) LoadTile(info, part, 0, 0, 0, rank, cuts, head);
    LoadKeys();
    if constexpr (kManySeqs) {
      FindFills({1, info.query_begin, info.query_begin + 1, info.context_len}, 1, true);
    }
    Stop();
  }

  __device__ __forceinline__ void Run(ClusterLengths& lengths, int rank, int head) {
    if (!kManySeqs && p.max_seqs == 1 && p.tokens == 1 && p.group_size <= kLineRows &&
        lengths.num_seqs == 1 && lengths.begin == 0 && lengths.end == 1 && lengths.context >= 0 &&
        lengths.context <= p.max_context) {
      return RunToken({0, 1, Uniform(lengths.context), 0}, rank, head);
    }
    if constexpr (kManySeqs) {
      const int begin = Uniform(lengths.begin), end = Uniform(lengths.end);
      const int context = Uniform(lengths.context);
      if (p.group_size <= kLineRows && lengths.num_seqs == 1 && end - begin == 1 &&
          AreValid(p, begin, end, context)) {
        return RunToken({begin, 1, context, 0}, rank, head);
      }
    }
    // Loops over what the compiler does not know to be the same in all lanes are of lanes that
    // part.
    const int seqs = Uniform(min(max(lengths.num_seqs, 0), p.max_seqs));
    int num_seqs = seqs;  // a lane each
    if (kManySeqs && seqs > kClusterSeqs) {
      num_seqs = FindClaims(seqs);
      lengths = ReadLengths(p, lane_seq);
    }
    const bool valid = lane < num_seqs && AreValid(p, lengths.begin, lengths.end, lengths.context);
    const LaneSequence found = FindSequences(p, valid, lengths.begin, lengths.end, lengths.context);
    LookAt(0, found.info);
    const bool contested = found.contested || (kManySeqs && num_seqs > kClusterSeqs);
    int line = __shfl_sync(kAllLanes, info.line_end, 31);
    const int rows = __reduce_add_sync(kAllLanes, info.query_len);
    if (kPaired && !contested) line = TakeHalf(rank / kClusterBlocks, line);
    const LineCuts cuts(RangesOf(p, kClusterBlocks, line));
    const int of_cluster = rank % kClusterBlocks;
    if (contested) {
      const Owner of_lane = FindOwner(min(lane, p.tokens - 1), seqs, false);
      TakeTokens(of_lane, 0, rank, p.tokens, kHeadBlocks, head);
    } else if (line > 0 && of_cluster < cuts.ranges) {
      LoadRange(of_cluster, cuts, num_seqs, head);
    }
    LoadKeys();
    if (!contested && rows < p.tokens) FindFills(lengths, num_seqs, valid);
    Stop();
  }
};

// The maximum of `count` parts of a row, the sum of their weights, and their factors in both.
template <int kMost>
struct MergedRow {
  float max, sum, factors[kMost];

  __device__ __forceinline__ MergedRow(const float (&of_max)[kMost], const float (&of_sum)[kMost],
                                       float logit_factor) {
    max = of_max[0];
#pragma unroll
    for (int i = 1; i < kMost; ++i) max = fmaxf(max, of_max[i]);
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      factors[i] = Exp2(Log2Weight(of_max[i], max, logit_factor));
      sum += of_sum[i] * factors[i];
    }
  }
};

// Writes four elements of a row of the result, and what else the row has with the first.
__device__ __forceinline__ void FinishElements(const Params& p, const Tile& tile,
                                               long long query_row, int d, const LogitFactor& logit,
                                               float max, float sum,
                                               const Vector<float, 4>& value) {
  const RowEnd end = FinishRow(p, tile, query_row, logit, max, sum);
  Vector<Out, 4> out;
#pragma unroll
  for (int j = 0; j < 4; ++j) out.x[j] = FromFloat<Out>(end.Value(value.x[j]));
  StoreVector(static_cast<Out*>(p.out) + query_row * kHeadDim + d, out);
  if (HasLse(p) && d == 0) p.lse[query_row] = end.lse;
}

// How the elements of a tile of several parts are shared out over the blocks that have them, in
// vectors of four: what a block finishes.
struct ShareOfTile {
  static constexpr int kVectors = kHeadDim / 4;  // of a row
  int count, each;                               // of all, of a block at most
  int first, end;

  __device__ __forceinline__ ShareOfTile(const Tile& tile, int split)
      : count(tile.num_rows * kVectors),
        each(static_cast<int>((count + tile.splits - 1u) / static_cast<unsigned>(tile.splits))),
        first(min(split * each, count)),
        end(min(first + each, count)) {}

  __device__ __forceinline__ int Size() const { return end - first; }
  __device__ __forceinline__ int FirstRow() const { return first / kVectors; }
  __device__ __forceinline__ int Rows() const {
    return (end + kVectors - 1) / kVectors - FirstRow();
  }
  // Where a vector, and what is known of a row, of the part `split` lies among those of all parts.
  __device__ __forceinline__ int PlaceOf(int split, int vector) const {
    return split * Size() + vector - first;
  }
  __device__ __forceinline__ int PlaceOfRow(int split, int row) const {
    return split * Rows() + row - FirstRow();
  }
};

// Waits for a piece, and starts to copy its queries. False: there is none.
__device__ __forceinline__ bool LoadQueriesOfNext(const Params& p, DecodeMemory& shared,
                                                  const Place<DecodeMemory::kSlots>& at,
                                                  int thread) {
  Wait(At(shared.slot_full, at), at.parity);
  const DecodeSlot& slot = shared.slots[at.index];
  if (slot.stop != 0) return false;
  LoadQueries<kWriteThreads>(p, shared, slot.tile, at, thread);
  return true;
}

// Puts the sums of a piece into the places of the blocks that finish them, or finishes the rows of
// a tile that is not split.
__device__ __forceinline__ void WriteClusterPieces(const Params& p, DecodeMemory& shared, int rank,
                                                   int thread) {
  constexpr int kVectors = ShareOfTile::kVectors;
  Place<1> sums;
  Place<DecodeMemory::kSlots> next;
  bool more = LoadQueriesOfNext(p, shared, next, thread);
  WaitForCluster();                                  // for the barriers of the other blocks
  if constexpr (kManySeqs) WaitForLaunchesBefore();  // so that who waits for this launch waits too
  while (more) {
    const Place<DecodeMemory::kSlots> at = next;
    next.Next();
    more = LoadQueriesOfNext(p, shared, next, thread);  // found before this one's keys are there
    const DecodeSlot& slot = shared.slots[at.index];
    const Tile tile = slot.tile;
    const LogitFactor logit = MakeLogitFactor(p, tile.head);
    const ShareOfTile own_share(tile, tile.split);
    const int first = rank - tile.split;
    if (tile.splits > 1 && thread == 0) {
      DecodeMemory::Shares& own = shared.shares[tile.split == 0 ? 1 : 0];
      own.split = tile.split, own.splits = tile.splits;
      own.query_begin = tile.query_begin;
      own.first_row = tile.first_row, own.num_rows = tile.num_rows;
      own.exist = own_share.Size() > 0;
      if (own.exist != 0) {
        ArriveExpecting(SharedAddress(&own.full),
                        tile.splits * (own_share.Size() * 16 + own_share.Rows() * 8));
      }
    }
    Wait(At(shared.sums_full, sums), sums.parity);
    const bool bad = slot.bad != 0;
    for (int i = thread; i < own_share.count; i += kWriteThreads) {
      const int row = i / kVectors, d = i % kVectors * 4;
      MergedRow<DecodeMemory::kParts> merged(shared.max[row], shared.sum[row], logit.factor);
      if (bad) merged.sum = NaN();
      Vector<float, 4> value = {};
#pragma unroll
      for (int w = 0; w < DecodeMemory::kParts; ++w) {
        const auto x = *reinterpret_cast<const Vector<float, 4>*>(&shared.sums[w][row][d]);
#pragma unroll
        for (int j = 0; j < 4; ++j) value.x[j] += x.x[j] * merged.factors[w];
      }
      if (tile.splits == 1) {
        FinishElements(p, tile, QueryRow(p, tile, row), d, logit, merged.max, merged.sum, value);
        continue;
      }
      const int to = i / own_share.each;
      const ShareOfTile share(tile, to);
      const DecodeMemory::Shares& its = shared.shares[to == 0 ? 1 : 0];
      const unsigned full = InBlock(SharedAddress(&its.full), first + to);
      StoreInBlock(InBlock(SharedAddress(its.sums[share.PlaceOf(tile.split, i)]), first + to),
                   value, full);
      if (i == share.first || d == 0) {
        const float* const place = its.max_and_sum[share.PlaceOfRow(tile.split, row)];
        StoreInBlock(InBlock(SharedAddress(place), first + to), merged.max, merged.sum, full);
      }
    }
    Arrive(At(shared.sums_empty, sums));
    Arrive(At(shared.slot_empty, at));
    sums.Next();
  }
}

// Finishes this block's share of a tile, of kMost parts at most. What does not need them is worked
// out before they are there.
template <int kMost>
__device__ __forceinline__ void MergeParts(const Params& p, const DecodeMemory::Shares& of,
                                           int head, int thread) {
  constexpr int kVectors = ShareOfTile::kVectors;
  Tile tile = {};
  tile.split = of.split, tile.splits = of.splits;
  tile.query_begin = of.query_begin;
  tile.first_row = of.first_row, tile.num_rows = of.num_rows;
  tile.head = head;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);
  const ShareOfTile share(tile, tile.split);
  for (int i = share.first + thread; i < share.end; i += kWriteThreads) {
    const int row = i / kVectors, d = i % kVectors * 4;
    const long long query_row = QueryRow(p, tile, row);
    Wait(SharedAddress(&of.full), 0);
    float max[kMost], sum[kMost];
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      const bool exists = s < tile.splits;
      const float* const from = of.max_and_sum[share.PlaceOfRow(exists ? s : 0, row)];
      max[s] = exists ? from[0] : -Infinity();
      sum[s] = exists ? from[1] : 0.0f;
    }
    const MergedRow<kMost> merged(max, sum, logit.factor);
    Vector<float, 4> value = {};
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s >= tile.splits) break;
      const auto x = *reinterpret_cast<const Vector<float, 4>*>(of.sums[share.PlaceOf(s, i)]);
#pragma unroll
      for (int j = 0; j < 4; ++j) value.x[j] += x.x[j] * merged.factors[s];
    }
    FinishElements(p, tile, query_row, d, logit, merged.max, merged.sum, value);
  }
}

// Of tiles in parts.
__device__ __forceinline__ void MergeClusterParts(const Params& p, DecodeMemory& shared, int head,
                                                  int thread) {
  SyncThreads(kWriters, kWriteThreads);  // the first thread has said which tiles
  for (const DecodeMemory::Shares& of : shared.shares) {
    if (of.exist == 0) continue;
    constexpr int kFew = kClusterBlocks < 8 ? kClusterBlocks : 8;
    if (of.splits <= kFew) {
      MergeParts<kFew>(p, of, head, thread);
    } else {
      MergeParts<kClusterBlocks>(p, of, head, thread);
    }
  }
}

__device__ __forceinline__ void DecodeInCluster(const Params& p, const TensorMap& key_boxes,
                                                const TensorMap& value_boxes, char* memory) {
  DecodeMemory& shared = *reinterpret_cast<DecodeMemory*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  const int rank = static_cast<int>(blockIdx.x % kClusterBlocks);
  const int head_rank = static_cast<int>(blockIdx.x % kHeadBlocks);  // of all its clusters
  const int head = static_cast<int>(blockIdx.x / kHeadBlocks);
  if (kManySeqs && p.appended == 0) WaitForLaunchesBefore();
  ClusterLengths lengths = {};
  if (warp == kLineWarps) {
    lengths = ReadLengths(p, threadIdx.x % 32);
  } else if (warp == 0) {
    if (threadIdx.x == 0) {
      shared.has_fills = 0;
      for (DecodeMemory::Shares& of : shared.shares) {
        of.exist = 0;
        InitBarrier(SharedAddress(&of.full), 1);
      }
      InitDecodeBarriers(shared);
    }
  } else if (warp == 1) {
    if (kManySeqs && threadIdx.x % 32 == 0) __threadfence();  // empties it
    if (kBoxes && threadIdx.x % 32 < (kPairs ? 1 : 2)) {
      PrefetchMap(threadIdx.x % 32 == 0 ? &key_boxes : &value_boxes);
    }
  } else {
    // The page numbers, while the lengths are on their way.
    constexpr int kLine = 32;
    const long long at = static_cast<long long>(threadIdx.x - 64) * kLine;
    const int seqs = kManySeqs ? p.tokens : p.max_seqs;  // likely to have rows
    if (at < static_cast<long long>(seqs) * p.max_pages) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p.block_tables + at));
    }
  }
  __syncthreads();
  ArriveCluster();

  // Each warp's part.
  if (warp < kLineWarps) {
    ComputePieces(p, shared, warp);
  } else if (warp == kLineWarps) {
    ClusterLoader{{{p, shared, {p, key_boxes, value_boxes, shared}}}}.Run(lengths, head_rank, head);
  } else if (!kBoxes && warp < kFirstWriteWarp) {
    CopyKeys(p, shared, warp - kLineWarps - 1);
  } else {
    const int thread = static_cast<int>(threadIdx.x) - kFirstWriteWarp * 32;
    WriteClusterPieces(p, shared, rank, thread);
    MergeClusterParts(p, shared, head, thread);
  }
  if (warp < kFirstWriteWarp) WaitForCluster();

  // Rows that no sequence has.
  __syncthreads();
  if (shared.has_fills != 0) {
    for (int token = head_rank; token < p.tokens; token += kHeadBlocks) {
      const char fill = shared.fill[token];
      if (fill == 0) continue;
      FillHeads<Out, kHeadDim>(p, token, head * p.group_size, p.group_size,
                               fill == 2 ? NaN() : 0.0f, fill == 2 ? NaN() : -Infinity());
    }
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_CLUSTER_SM90_CUH_
