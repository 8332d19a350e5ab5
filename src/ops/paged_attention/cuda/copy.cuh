// The copy of keys and values of fp8 in the query's type, exact, or of f32 as terms (terms.cuh),
// from which Hopper's prefill reads those of sequences with many rows: they are converted once, not
// for each piece. The schedule gives sequences places in it one after the other, as long as they
// fit; the others' pieces convert for themselves.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_CUH_

#include "src/ops/paged_attention/cuda/line.cuh"

namespace xla_gpu::paged_attention {

// What is copied of a sequence, if there is room: whole boxes from the first key that a row sees.
struct CopyPart {
  int first_key;
  int tokens;  // 0: it has too few rows
};

__device__ __forceinline__ CopyPart CopyPartOf(const Params& p, const SequenceInfo& info) {
  const int seeing = p.window > 0 ? min(info.query_len, p.window) : info.query_len;
  if (p.copy_capacity == 0 || seeing * p.group_size < p.least_copy_rows) return {};
  const int first = KeysOf(p, info, 0, 1).begin / kCopyTokens;
  return {first * kCopyTokens,
          ((info.context_len + kCopyTokens - 1) / kCopyTokens - first) * kCopyTokens};
}

__device__ __forceinline__ bool IsCopied(const Params& p, const SequenceInfo& info) {
  return p.copy_capacity > 0 && info.line_end <= p.copy_capacity && CopyPartOf(p, info).tokens > 0;
}

// Where the sequence's key 0 would lie in the copy.
__device__ __forceinline__ int CopyBegin(const Params& p, const SequenceInfo& info) {
  const CopyPart part = CopyPartOf(p, info);
  return info.line_end - part.tokens - part.first_key;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_COPY_CUH_
