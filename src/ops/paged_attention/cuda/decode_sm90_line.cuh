// How a warp of the Hopper decode kernels lays the line of decode work itself, from the lengths
// that the call gives, without the schedule.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LINE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LINE_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/line.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

// The line of all sequences so far: what the schedule finds too, which computes the same. It is the
// same in all lanes, and the compiler knows that: else every loop over it is one of lanes that
// part.
struct LineSoFar {
  int num_seqs;
  int length;
  int end;         // the greatest one of a valid sequence's tokens
  int owned;       // tokens that valid sequences have
  bool contested;  // starts descend, so that tokens may be of several sequences

  // Adds the next 32 sequences, one a lane.
  __device__ __forceinline__ SequenceInfo Add(const Params& p, const Lengths& lengths, bool valid) {
    const int lane = threadIdx.x % 32;
    SequenceInfo info = {};
    if (valid) info = {lengths.begin, lengths.end - lengths.begin, lengths.context, 0};
    int own_end = valid ? lengths.end : 0, line_end = LinePartOf(p, info).Length();
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other_end = __shfl_up_sync(kAllLanes, own_end, step);
      const int other_line = __shfl_up_sync(kAllLanes, line_end, step);
      if (lane >= step) own_end = max(own_end, other_end), line_end += other_line;
    }
    int before = __shfl_up_sync(kAllLanes, own_end, 1);
    before = lane == 0 ? end : max(before, end);
    info.line_end = length + line_end;
    const bool overlaps = __any_sync(kAllLanes, info.query_len > 0 && before > info.query_begin);
    contested = Uniform(contested || overlaps) != 0;
    owned = Uniform(owned + __reduce_add_sync(kAllLanes, info.query_len));
    end = Uniform(max(end, __shfl_sync(kAllLanes, own_end, 31)));
    length = Uniform(__shfl_sync(kAllLanes, info.line_end, 31));
    return info;
  }
};

// The line of all sequences, at most kAheadSeqs, which are left in `sequences`. A warp.
__device__ __forceinline__ LineSoFar LayLine(const Params& p, SequenceInfo* sequences) {
  const int lane = threadIdx.x % 32;
  Lengths next = ReadLengths(p, lane);
  LineSoFar line = {.num_seqs = Uniform(ReadNumSeqs(p))};
#pragma unroll 1
  for (int first = 0; first < line.num_seqs; first += 32) {
    const int seq = first + lane;
    const Lengths lengths = next;
    next = ReadLengths(p, seq + 32);
    sequences[seq] = line.Add(p, lengths, seq < line.num_seqs && IsValid(p, lengths));
  }
  __syncwarp();
  return line;
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LINE_CUH_
