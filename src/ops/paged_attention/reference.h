// The oracle of paged_attention: the whole contract in fp64 and obvious code. Slow.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_REFERENCE_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_REFERENCE_H_

#include "src/core/status.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::paged_attention {

// Writes `out` [tokens, q_heads, head_dim] and, unless null, `lse` [tokens, q_heads]; the outputs
// in `buffers` are left alone. Where sequences overlap, a row gets the last
// valid one's result.
void PagedAttentionReference(const Problem& problem, const Buffers& buffers, double* out,
                             double* lse);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_REFERENCE_H_
