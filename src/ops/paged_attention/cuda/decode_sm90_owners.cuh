// Batches where any sequence may have a token: who owns it is found by looking at all of them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_OWNERS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_OWNERS_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_load.cuh"
#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention::sm90 {

// A sequence's lengths; without rows if they are wrong, or if it is none of the call's.
struct TokenSequence {
  SequenceInfo info;
  int begin, end;  // what the call says
  bool valid;
};
__device__ __forceinline__ TokenSequence ReadSequence(const Params& p, int seq, int num_seqs) {
  const int begin = LoadIndex(p.query_start_loc + seq),
            end = LoadIndex(p.query_start_loc + seq + 1);
  const int context = LoadIndex(p.context_lens + seq);
  TokenSequence of = {{}, begin, end, seq < num_seqs && AreValid(p, begin, end, context)};
  if (of.valid) of.info = {begin, end - begin, context, 0};
  return of;
}

struct OwnerLoader : Loader {
  struct Owner {
    SequenceInfo info;
    int seq;      // -1: none
    int claimed;  // by sequences with wrong lengths, or a page out of range
  };

  // Of the lane's token: the last right sequence that has it. `proper`: only the sequence of the
  // same number can.
  __device__ __forceinline__ Owner FindOwner(int token, int num_seqs, bool proper) const {
    Owner owner = {{}, -1, 0};
    if (proper) {
      const TokenSequence of = ReadSequence(p, token, num_seqs);
      if (of.info.query_len > 0) owner = {of.info, token, 0};
      return owner;
    }
#pragma unroll 1
    for (int s = num_seqs - 1; s >= 0; --s) {
      const TokenSequence of = ReadSequence(p, s, num_seqs);
      const bool has = owner.seq < 0 && of.begin <= token && token < of.end;
      if (!__any_sync(kAllLanes, has)) continue;
      const Keys keys = KeysOf(p, of.info, 0, of.info.query_len * p.group_size);
      const bool good = of.valid && !HasBadPage(s, keys.begin, keys.end);
      if (has && good) owner = {of.info, s, 0};
      if (has && !good) owner.claimed = 1;
    }
    return owner;
  }

  // Takes tokens begin, begin + step, ..., before `end`, whole, or fills their rows: lane 0 has the
  // owner of token `first`, the next lanes those of the next ones.
  __device__ __forceinline__ void TakeTokens(const Owner& of_lane, int first, int begin, int end,
                                             int step, int head) {
#pragma unroll 1
    for (int token = begin; token < end; token += step) {
      const auto from = [&](int x) { return __shfl_sync(kAllLanes, x, token - first); };
      const int seq = from(of_lane.seq);
      const SequenceInfo of = {from(of_lane.info.query_begin), from(of_lane.info.query_len),
                               from(of_lane.info.context_len), 0};
      const bool claimed = from(of_lane.claimed) != 0;
      if (seq >= 0) {
#pragma unroll 1
        for (int row = 0; row < (kTokens ? 1 : p.group_size); row += kLineRows) {
          Take({ItemOfToken(p, seq, of, token, row, kLineRows), head}, nullptr);
        }
      } else {
        FillHeads<Out, kHeadDim>(p, token, head * p.group_size, p.group_size,
                                 claimed ? NaN() : 0.0f, claimed ? NaN() : -Infinity(), lane, 32);
      }
    }
  }
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_OWNERS_CUH_
