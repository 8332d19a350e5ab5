// ragged_paged_attention_v3: writes the keys and values of new tokens into a packed cache, then
// attends over it. The TPU kernel's contract (v3, and its variant for head_dim 64 with sinks), made
// of this library's update_kv_cache and paged_attention.
#ifndef XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RAGGED_PAGED_ATTENTION_V3_H_
#define XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RAGGED_PAGED_ATTENTION_V3_H_

#include <memory>

#include "src/core/op.h"
#include "src/ops/paged_attention/paged_attention.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {

inline constexpr char kName[] = "ragged_paged_attention_v3";

// Everything that is known while XLA compiles. The packed cache is strides in both parts.
struct Problem {
  paged_attention::Problem attention;
  update_kv_cache::Problem update;  // on the Host, of i64 slots that follow from the lengths
  bool update_kv_cache = true;      // false: the cache already holds the new tokens
};

// The tensors of one call, as each part wants them; update's slot_mapping is left null. Attention
// reads the result cache.
struct Buffers {
  paged_attention::Buffers attention;
  update_kv_cache::Buffers update;
};

StatusOr<Problem> ProblemFromCall(const Call& call);
Buffers BuffersFromCall(const Problem& problem, const Call& call);

// Where a new token is written: position context_len - query_len + i of its sequence, looked up in
// block_tables. Nothing is written for a token of no sequence, of a sequence with wrong lengths
// (paged_attention/problem.h), whose position is negative (context_len < query_len), or whose own
// page lies outside the cache. Where sequences overlap
// because query_start_loc is not monotonic, a token goes to the last sequence with right lengths
// that has it. Where two tokens meet in one slot, which a right batch never does, one of them
// stays.

}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3HostPlan(const Call& call,
                                                                   int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3CudaPlan(const Call& call,
                                                                   int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RAGGED_PAGED_ATTENTION_V3_H_
