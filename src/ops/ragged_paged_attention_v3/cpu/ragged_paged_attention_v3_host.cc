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

class HostPlan final : public Plan {
 public:
  explicit HostPlan(const Problem& problem) : problem_(problem) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    Buffers buffers = BuffersFromCall(problem_, call);
    static thread_local std::vector<int64_t> slots;  // keeps its memory
    if (problem_.update_kv_cache) {
      FindSlots(problem_.attention, buffers.attention, slots);
    } else {
      slots.assign(static_cast<size_t>(problem_.attention.tokens), -1);
    }
    buffers.update.slot_mapping = slots.data();
    update_kv_cache::UpdateCacheOnHost(problem_.update, buffers.update, *context.thread_pool);
    paged_attention::AttendOnHost(problem_.attention, buffers.attention, *context.thread_pool);
    return OkStatus();
  }

 private:
  const Problem problem_;
};

}  // namespace
}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3HostPlan(const Call& call,
                                                                   int device_ordinal) {
  namespace v3 = ragged_paged_attention_v3;
  XLA_GPU_ASSIGN_OR_RETURN(v3::Problem problem, v3::ProblemFromCall(call));
  problem.update.slot_dtype = DType::kI64;
  return std::unique_ptr<Plan>(std::make_unique<v3::HostPlan>(problem));
}

}  // namespace xla_gpu
