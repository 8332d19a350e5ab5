// paged_attention: from a call to its Problem and Buffers, and the plan factories.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "src/core/op.h"
#include "src/core/thread_pool.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu {
namespace paged_attention {

// Checks shapes and attributes. Results are not looked at.
StatusOr<Problem> ProblemFromCall(const Call& call);

// What every op that ends in paged attention has, under its own names for some; errors begin with
// the op's.
struct OptionNames {
  const char* op;
  const char* query;
  const char* starts;  // where the query rows of a sequence begin
  const char* sinks;
  const char* scale;
  const char* causal;
};
// The schema of its arguments: those of the op's own, then three optional ones.
std::vector<ArgSpec> AttentionArgs(const OptionNames& names, std::vector<ArgSpec> own);
// The schema of its attributes, with `more` of the op's own among them.
std::vector<AttrSpec> AttentionAttrs(const OptionNames& names, std::vector<AttrSpec> more);

// The query into `problem`.
Status ParseQuery(const OptionNames& names, const TensorView& query, Problem& problem);
// Whether its heads fit the `kv_heads` of the tensor `kv`.
Status CheckHeads(const OptionNames& names, const TensorView& query, std::string_view kv_name,
                  const TensorView& kv, int64_t kv_heads);
// The optional arguments, the last three of `args` (BindArguments), and the attributes into
// `problem`, whose query and cache are known.
Status ParseOptions(const OptionNames& names, std::span<const TensorView* const> args,
                    const Attributes& attributes, Problem& problem);

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
