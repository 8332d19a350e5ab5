// ragged_paged_attention_v3 on the Host: slots from the lengths, then the two ops it is made of.
#include <algorithm>
#include <vector>

#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {
namespace {

// The slot of every token, -1 where nothing is to be written.
void FindSlots(const paged_attention::Problem& p, const paged_attention::Buffers& b,
               std::vector<int64_t>& slots) {
  slots.assign(static_cast<size_t>(p.tokens), -1);
  const int64_t num_seqs = std::clamp<int64_t>(b.num_seqs[0], 0, p.max_seqs);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t begin = b.query_start_loc[seq], end = b.query_start_loc[seq + 1];
    const int64_t context = b.context_lens[seq];
    if (begin < 0 || begin > end || end > p.tokens) continue;
    if (context < 0 || context > p.max_context()) continue;
    const int32_t* pages = b.block_tables + seq * p.max_pages_per_seq;
    for (int64_t token = begin; token < end; ++token) {
      const int64_t position = context - end + token;
      slots[token] = -1;
      if (position < 0) continue;
      const int64_t page = pages[position / p.page_size];
      if (page < 0 || page >= p.num_pages) continue;
      slots[token] = page * p.page_size + position % p.page_size;
    }
  }
}

}  // namespace
}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3HostPlan(const Call& call,
                                                                   int device_ordinal) {
  using namespace ragged_paged_attention_v3;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return MakePlan([problem](const Call& call, const ExecutionContext& context) {
    Buffers buffers = BuffersFromCall(problem, call);
    static thread_local std::vector<int64_t> slots;  // keeps its memory
    if (problem.update_kv_cache) {
      FindSlots(problem.attention, buffers.attention, slots);
    } else {
      slots.assign(static_cast<size_t>(problem.attention.tokens), -1);
    }
    buffers.update.slot_mapping = slots.data();
    update_kv_cache::UpdateCacheOnHost(problem.update, buffers.update, *context.thread_pool);
    paged_attention::AttendOnHost(problem.attention, buffers.attention, *context.thread_pool);
    return OkStatus();
  });
}

}  // namespace xla_gpu
