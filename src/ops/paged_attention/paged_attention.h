// paged_attention: from a call to its Problem and Buffers, and the plan factories.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include <memory>

#include "src/core/op.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu {
namespace paged_attention {

// Checks dtypes, shapes and attributes; every error is a message of DESIGN 6's form. Results are
// not looked at.
StatusOr<Problem> ProblemFromCall(const Call& call);

// The tensors of a call of this problem. `call` has its results; allocates nothing.
Buffers BuffersFromCall(const Problem& problem, const Call& call);

}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakePagedAttentionCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
