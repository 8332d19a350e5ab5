// How warps share the copy of keys and values (copy.cuh).
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_UNITS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_UNITS_CUH_

#include "src/ops/paged_attention/cuda/copy.cuh"
#include "src/ops/paged_attention/cuda/tile.cuh"

namespace xla_gpu::paged_attention {

// The first sequence whose place ends behind a token of the copy; all lanes of a warp.
__device__ __forceinline__ int CopyOwner(const Params& p, int token) {
  const int lane = threadIdx.x % 32, num_seqs = static_cast<int>(p.header->num_seqs);
  int first = 0;
  for (int step = (num_seqs + 31) / 32;; step = (step + 31) / 32) {
    const int last = min(first + (lane + 1) * step, num_seqs) - 1;
    const unsigned behind = __ballot_sync(kAllLanes, p.sequences[last].line_end > token);
    first += (__ffs(static_cast<int>(behind)) - 1) * step;
    if (step == 1) return first;
  }
}

// All threads of all blocks: a warp copies the kCopyTokens keys and values of a box and head, one
// of kv_heads units a box, at a time, by copy(unit, head, row). `row`: bytes from the cache's base
// to the row of head 0 of token lane % kCopyTokens; -1, for zeros, if no row sees that key, or its
// page is out of range.
template <typename CopyUnit>
__device__ __forceinline__ void ForCopyUnits(const Params& p, CopyUnit copy) {
  const int lane = threadIdx.x % 32;
  const int units = p.header->copied_tokens / kCopyTokens * p.kv_heads;
  const int warps = static_cast<int>(gridDim.x * blockDim.x) / 32;
  const int each = (units + warps - 1) / warps;
  // Neighbours are on different multiprocessors.
  const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  const int end = min((warp + 1) * each, units);
#pragma unroll 1
  for (int unit = warp * each; unit < end; ++unit) {
    const int box = unit / p.kv_heads;
    Tile tile;  // all of the sequence's rows
    tile.seq = CopyOwner(p, box * kCopyTokens);
    const SequenceInfo info = p.sequences[tile.seq];
    const Keys keys = KeysOf(p, info, 0, info.query_len * p.group_size);
    tile.key_begin = keys.begin;
    tile.key_end = keys.end;
    const int key = box * kCopyTokens - CopyBegin(p, info) + lane % kCopyTokens;
    copy(unit, unit - box * p.kv_heads, KeyOffset(p, tile, key, PageOf(p, tile, key)));
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_UNITS_CUH_
