// What the attributes of a call ask of its kernels. Part of the Host's Problem and of the CUDA
// kernels' Params, which take it as it is: no header, no type of uncertain size, no padding.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_OPTIONS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_OPTIONS_CUH_

namespace xla_gpu::paged_attention {

struct Options {
  float scale = 1.0f;
  float soft_cap = 0.0f;    // 0: none
  int causal = 1;           // 0: queries see later keys too
  int batch_invariant = 0;  // 1: a sequence's bits do not depend on the rest of the batch
};

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_OPTIONS_CUH_
