// Decode of tokens that see few keys on Hopper: a window is narrow, or sequences have room for
// little. A tile is a token's rows of a kv head and is never split, so that there is no schedule
// and nothing goes through the workspace. Blocks of one head take neighbouring tokens, as many as
// make equal shares of the line of all of them; two blocks share a multiprocessor, with half the
// warps and half the ring of decode_sm90.cuh each, so that one loads while the other ends a tile.
//
// Where each sequence has one token and they lie in order, token t is of sequence t. Else the warp
// that finds the pieces looks at all sequences for each 32 tokens: the last that has a token owns
// it.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_TOKENS_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_TOKENS_SM90_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90.cuh"
#include "src/ops/paged_attention/cuda/decode_sm90_owners.cuh"

namespace xla_gpu::paged_attention::sm90 {

// Sets the block's tokens, those that begin in its range of the line; all threads. True: token t is
// of sequence t or of none.
__device__ __forceinline__ bool FindTokens(const Params& p, DecodeMemory& shared, int num_seqs,
                                           int range, int ranges) {
  constexpr int kWarps = kDecodeThreads / 32;
  const int warp = threadIdx.x / 32;
  const int each = (p.max_seqs + kDecodeThreads - 1) / kDecodeThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, p.max_seqs);
  const int end = min(first + each, p.max_seqs);
  bool proper = true;
  const auto length_of = [&](int seq) {
    const TokenSequence of = ReadSequence(p, seq, num_seqs);
    proper &=
        seq >= num_seqs || of.begin == of.end || (of.valid && of.begin == seq && of.end == seq + 1);
    return LinePartOf(p, of.info).Length();
  };
  int length = 0;
  for (int s = first; s < end; ++s) length += length_of(s);
  int ends = 0, place = length;
  ScanLanes(ends, place);
  if (threadIdx.x % 32 == 31) shared.lengths[warp] = place;
  if (threadIdx.x == 0) shared.first = shared.end = 0;
  proper = __syncthreads_and(static_cast<int>(proper)) != 0;
  place -= length;
  int line = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) place += line;
    line += shared.lengths[w];
  }
  // How many tokens begin before the range, and before the next one: all blocks agree on it.
  const float share = static_cast<float>(line) * Reciprocal(static_cast<float>(ranges));
  const auto cut_at = [&](int cut) {
    return cut == 0        ? -0x7fffffff - 1
           : cut == ranges ? 0x7fffffff
                           : __float2int_rn(static_cast<float>(cut) * share);
  };
  const int begin_at = cut_at(range), end_at = cut_at(range + 1);
  int before = 0, before_end = 0;
  for (int s = first; s < min(end, p.tokens); ++s) {
    if (s > first) place += length_of(s - 1);
    before += place < begin_at ? 1 : 0;
    before_end += place < end_at ? 1 : 0;
  }
  before = __reduce_add_sync(kAllLanes, before);
  before_end = __reduce_add_sync(kAllLanes, before_end);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared.first, before);
    atomicAdd(&shared.end, before_end);
  }
  __syncthreads();
  return proper;
}

struct TokenLoader : OwnerLoader {
  __device__ __forceinline__ void Run(int num_seqs, bool proper, int head) {
    const int end = shared.end;
#pragma unroll 1
    for (int first = shared.first; first < end; first += 32) {
      const Owner of_lane = FindOwner(min(first + lane, end - 1), num_seqs, proper);
      TakeTokens(of_lane, first, first, min(first + 32, end), 1, head);
    }
    LoadKeys();
    Stop();
  }
};

__device__ __forceinline__ void DecodeTokens(const Params& p, const TensorMap& key_boxes,
                                             const TensorMap& value_boxes, char* memory) {
  DecodeMemory& shared = *reinterpret_cast<DecodeMemory*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  const auto kv_heads = static_cast<unsigned>(p.kv_heads);
  const unsigned range = blockIdx.x / kv_heads;
  const int head = static_cast<int>(blockIdx.x - range * kv_heads);
  const int num_seqs = Uniform(min(max(LoadIndex(p.num_seqs), 0), p.max_seqs));
  if (threadIdx.x == kDecodeThreads - 1) {
    InitDecodeBarriers(shared);
    PrefetchMap(&key_boxes);
    if (!kPairs) PrefetchMap(&value_boxes);
  }
  const bool proper = FindTokens(p, shared, num_seqs, static_cast<int>(range),
                                 static_cast<int>(gridDim.x / kv_heads));

  // Each warp's part.
  if (warp < kLineWarps) {
    ComputePieces(p, shared, warp);
  } else if (warp == kLineWarps) {
    TokenLoader{{{p, shared, {p, key_boxes, value_boxes, shared}}}}.Run(num_seqs, proper, head);
  } else {
    WritePieces(p, shared, warp - kFirstWriteWarp);
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_TOKENS_SM90_CUH_
