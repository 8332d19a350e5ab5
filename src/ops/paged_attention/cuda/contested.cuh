// Batches whose starts descend, so that a row may belong to several sequences: no right batch is
// one, and what counts is that a wrong sequence does no harm to a right one. So the schedule itself
// looks at the pages, and gives each row to the last valid sequence that has it, in items of one
// token, without splits. The bits of a result may differ from those in a proper batch.
//
// Defines: those of schedule.cuh.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONTESTED_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONTESTED_CUH_

#include "src/ops/paged_attention/cuda/splits.cuh"

namespace xla_gpu::paged_attention {
namespace {

// Fill items for all tokens, from place `num_items` in the list; gives the list's new length.
__device__ __forceinline__ int WriteFills(const Params& p, int num_items) {
  const int fills = CeilDiv(p.tokens, kFillTokens);
#pragma unroll 1
  for (int i = threadIdx.x; i < fills; i += kScheduleThreads) {
    WorkItem item = {};
    item.kind = kFillItem;
    item.first_row = i * kFillTokens;
    p.items[num_items + i] = item;
  }
  return num_items + fills;
}

// Makes sequences with a page out of range invalid.
__device__ __forceinline__ void CheckPages(const Params& p, int num_seqs) {
  for (int s = 0; s < num_seqs; ++s) {
    const SequenceInfo info = p.sequences[s];
    if (info.query_len == 0) continue;
    const Keys keys = KeysOf(p, info, 0, info.query_len * p.group_size);
    const int pages = keys.end > 0 ? (keys.end - 1) / p.page_size + 1 : 0;
    bool bad = false;
#pragma unroll 1
    for (int i = keys.begin / p.page_size + static_cast<int>(threadIdx.x); i < pages;
         i += kScheduleThreads) {
      const int page = p.block_tables[static_cast<long long>(s) * p.max_pages + i];
      bad |= page < 0 || page >= p.num_pages;
    }
    if (__syncthreads_or(bad) && threadIdx.x == 0) {
      p.sequences[s] = {};
      p.state[s] = kInvalid;
    }
  }
  __syncthreads();
}

// Writes the items of a contested batch; gives their number.
__device__ __forceinline__ unsigned WriteContested(const Params& p, int num_seqs) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();  // the sequences are written
  CheckPages(p, num_seqs);
  for (int token = threadIdx.x; token < p.tokens; token += kScheduleThreads) {
    int owner = num_seqs - 1;
#pragma unroll 1
    for (; owner >= 0; --owner) {
      const SequenceInfo& info = p.sequences[owner];
      if (info.query_begin <= token && token < info.query_begin + info.query_len) break;
    }
    if (owner < 0) continue;
    const SequenceInfo info = p.sequences[owner];
#pragma unroll 1
    for (int head = 0; head < p.group_size; head += kDecodeTileRows) {
      WorkItem item = ItemOfToken(p, owner, info, token, head, kDecodeTileRows);
      item.rows = info.query_len * p.group_size;
      p.items[atomicAdd(&count, 1)] = item;
    }
  }
  __syncthreads();
  return static_cast<unsigned>(WriteFills(p, count));
}

}  // namespace
}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONTESTED_CUH_
