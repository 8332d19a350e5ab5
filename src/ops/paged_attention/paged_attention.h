// paged_attention: from a call to its Problem and Buffers, and the plan factories.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include <memory>
#include <string_view>
#include <vector>

#include "src/core/op.h"
#include "src/core/thread_pool.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu {
namespace paged_attention {

// Checks shapes and attributes. Results are not looked at.
StatusOr<Problem> ProblemFromCall(const Call& call);

// The attributes that every op that ends in paged attention has, under its own names for two.
struct OptionNames {
  const char* scale;
  const char* causal;
};
// Their schema, with `more` of the op's own among them.
std::vector<AttrSpec> AttentionAttrs(const OptionNames& names, std::vector<AttrSpec> more);
// Their values into `problem`, whose query_dtype is known. Errors begin with `op`.
Status ParseOptions(std::string_view op, const OptionNames& names, const Attributes& attributes,
                    Problem& problem);

// The tensors of a call of this problem. `call` has its results; allocates nothing.
Buffers BuffersFromCall(const Problem& problem, const Call& call);

// The attention of one call on the Host, for every op that ends in it. On CUDA such an op launches
// the kernels of cuda/config.h.
void AttendOnHost(const Problem& problem, const Buffers& buffers, ThreadPool& pool);

}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
