// What the Host hands to the kernel that appends new tokens. Included by Host and device code.
#ifndef XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_CUDA_PARAMS_CUH_
#define XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_CUDA_PARAMS_CUH_

#include "src/ops/update_kv_cache/cuda/params.cuh"

namespace xla_gpu::ragged_paged_attention_v3 {

struct AppendParams {
  update_kv_cache::Params update;  // slot_mapping is not used
  const int* context_lens;         // [max_seqs]
  const int* block_tables;         // [max_seqs, max_pages]
  const int* query_start_loc;      // [max_seqs + 1]
  const int* num_seqs;             // [1]
  long long max_context;
  long long max_pages;
  long long num_pages;
  int max_seqs;
};

}  // namespace xla_gpu::ragged_paged_attention_v3

#endif  // XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_CUDA_PARAMS_CUH_
