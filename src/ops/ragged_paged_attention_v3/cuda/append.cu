// ragged_paged_attention_v3, first launch: new tokens into the cache, each into the slot that its
// sequence's length and pages give it; and, beside that, paged attention's schedule.
//
// Defines: those of write_tokens.cuh and of schedule.cuh; APPEND_ALONE where there is no schedule.
#include "src/ops/paged_attention/cuda/schedule.cuh"
#include "src/ops/ragged_paged_attention_v3/cuda/params.cuh"
#include "src/ops/update_kv_cache/cuda/write_tokens.cuh"

namespace xla_gpu::ragged_paged_attention_v3 {
namespace {

using update_kv_cache::kMaxTokensPerBlock;

// The last sequence with right lengths that has each of the block's tokens, or -1. Threads look at
// all sequences side by side: a search would be a chain of loads.
__device__ void FindOwners(const AppendParams& p, long long first, long long end, int* owners) {
  for (int seq = threadIdx.x; seq < p.max_seqs; seq += blockDim.x) {
    const long long from = p.query_start_loc[seq], to = p.query_start_loc[seq + 1];
    const long long context = p.context_lens[seq];
    if (seq >= *p.num_seqs || from < 0 || from > to || to > p.update.tokens) continue;
    if (context < 0 || context > p.max_context) continue;
    const long long begin = from > first ? from : first;
    for (long long token = begin; token < (to < end ? to : end); ++token) {
      atomicMax(&owners[token - first], seq);
    }
  }
}

__device__ long long SlotOf(const AppendParams& p, int seq, long long token) {
  const long long position = p.context_lens[seq] - p.query_start_loc[seq + 1] + token;
  if (position < 0) return -1;
  const long long in_table = update_kv_cache::Quotient(position, p.update.page_size);
  const long long page = p.block_tables[seq * p.max_pages + in_table];
  if (page < 0 || page >= p.num_pages) return -1;
  return page * p.update.page_size + position - in_table * p.update.page_size;
}

// Tokens [first, first + tokens_per_block), by one block.
__device__ void Append(const AppendParams& p, long long first) {
  __shared__ int owners[kMaxTokensPerBlock];
  __shared__ long long slots[kMaxTokensPerBlock];
  WaitForLaunchesBefore();
  update_kv_cache::TokenWriter writer(p.update, first);
  const long long end = min(first + p.update.tokens_per_block, p.update.tokens);
  for (int i = threadIdx.x; i < p.update.tokens_per_block; i += blockDim.x) owners[i] = -1;
  __syncthreads();
  FindOwners(p, first, end, owners);
  __syncthreads();
  for (int i = threadIdx.x; i < p.update.tokens_per_block; i += blockDim.x) {
    slots[i] = owners[i] < 0 ? -1 : SlotOf(p, owners[i], first + i);
  }
  __syncthreads();
  writer.Write(slots);
}

}  // namespace

// Grid: a block for the schedule, if there is one, then those that append.
extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    append_and_schedule(const __grid_constant__ AppendParams append,
                        const __grid_constant__ paged_attention::Params attention) {
#ifdef APPEND_ALONE
  LetNextLaunchBegin();
  Append(append, static_cast<long long>(blockIdx.x) * append.update.tokens_per_block);
#else
  if (blockIdx.x == 0) {
    paged_attention::Schedule(attention);
  } else {
    Append(append, (blockIdx.x - 1LL) * append.update.tokens_per_block);
  }
#endif
}

}  // namespace xla_gpu::ragged_paged_attention_v3
