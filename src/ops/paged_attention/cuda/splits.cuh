// How the schedule cuts key ranges: pieces of the decode and prefill items, chosen from the lengths
// of all sequences so that the workers end together.
//
// Defines: those of schedule.cuh.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_

#include "src/ops/paged_attention/cuda/items.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kScheduleThreads = SCHEDULE_THREADS;
constexpr bool kLineOnly = LINE_ONLY != 0;
constexpr int kScheduleWarps = kScheduleThreads / 32;

struct Totals {
  Work decode;
  Work prefill;
  int owned_tokens;
  int line;   // its length, or that of the copy
  int order;  // Order
};

struct Splits {
  KeySplit decode;
  KeySplit prefill;
};

// What each warp has counted for each candidate: at most kMostInt, which is more than fit.
struct Counts {
  int items[kScheduleWarps][kCandidates];
  int partial_rows[kScheduleWarps][kCandidates];
};

// The best candidate, one a lane; each warp counts the items of some sequences. `room`: for partial
// rows of all heads.
__device__ __forceinline__ KeySplit ChooseSplit(const Params& p, bool decode, bool launch,
                                                const Work& work, int of_workers, int num_seqs,
                                                int room, const SequenceInfo* infos,
                                                Counts& counts) {
  const Cut cut = CutOf(p, decode, launch, of_workers);
  if (AreWhole(p, decode, cut, work)) return {kMostInt, work.tiles, 0};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  KeySplit candidate = {CandidateLength(p, cut, work, lane), 0, 0};
#pragma unroll 1
  for (int s = warp; s < num_seqs; s += kScheduleWarps) {
    const SequenceInfo info = s < kScheduleThreads ? infos[s] : p.sequences[s];
    if (IsDecode(p, info) != decode || info.query_len == 0) continue;
    const Shape shape = ShapeOf(p, info);
    candidate.Add(shape.rows, shape.tiles, shape.visible_keys);
  }
  if (decode) __syncthreads();  // what was counted of prefill is read
  counts.items[warp][lane] = candidate.items;
  counts.partial_rows[warp][lane] = candidate.partial_rows;
  __syncthreads();
  candidate.items = candidate.partial_rows = 0;
#pragma unroll 1
  for (int w = 0; w < Min(kScheduleWarps, num_seqs); ++w) {
    candidate.items = AddUpTo(candidate.items, counts.items[w][lane]);
    candidate.partial_rows = AddUpTo(candidate.partial_rows, counts.partial_rows[w][lane]);
  }
  return Cheapest(p, cut, work, room, candidate);
}

// Of both kinds, one after the other by the same code: what runs once waits for its code.
__device__ __forceinline__ Splits ChooseSplits(const Params& p, const Totals& totals, bool launch,
                                               int prefill_workers, int num_seqs,
                                               const SequenceInfo* infos, Counts& counts) {
  Splits chosen;
  int room = totals.decode.tiles > 0 ? p.partial_capacity / 4 * 3 : p.partial_capacity;
#pragma unroll 1
  for (int decode = 0;; decode = 1) {
    const Work work = decode ? totals.decode : totals.prefill;
    const KeySplit split =
        ChooseSplit(p, decode, launch, work, decode ? p.workers : prefill_workers, num_seqs, room,
                    infos, counts);
    if (decode) {
      chosen.decode = split;
      return chosen;
    }
    chosen.prefill = split;
    room = p.partial_capacity - split.partial_rows * p.kv_heads;
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_SPLITS_CUH_
