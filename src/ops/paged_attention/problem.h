// Problem: everything about one paged_attention call that is known while XLA compiles.
//
// The contract of the op is in paged_attention.cc's schema and docs; the cache's layout is data
// here (strides), so that one kernel serves all layouts.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_PROBLEM_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_PROBLEM_H_

#include <cstdint>

#include "src/core/dtype.h"
#include "src/ops/paged_attention/options.cuh"
#include "src/ops/paged_cache/cache_shape.h"

namespace xla_gpu::paged_attention {

using paged_cache::CacheLayout;
using paged_cache::kMaxIndex;

inline constexpr int64_t kMaxHeads = 1 << 16;  // of queries

struct Problem : paged_cache::CacheShape, Options {
  // Types. Logits, softmax and accumulation are f32 or better in every kernel.
  DType query_dtype = DType::kInvalid;  // f32, bf16, f16
  DType out_dtype = DType::kInvalid;    // f32, bf16, f16

  // Shapes.
  int64_t tokens = 0;   // rows of query, padding included
  int64_t q_heads = 0;  // a multiple of kv_heads
  int64_t max_seqs = 0;
  int64_t max_pages_per_seq = 0;  // columns of block_tables

  // Of a sequence at most, as the caller promises: a matter of speed alone. 0: unknown, as always
  // in batch_invariant calls, whose bits must not depend on it.
  int64_t max_query_len = 0;

  // Features.
  int64_t sliding_window = 0;  // 0: none
  bool has_sinks = false;      // f32 [q_heads]
  bool return_lse = false;

  int64_t group_size() const { return q_heads / kv_heads; }
  int64_t max_context() const { return max_pages_per_seq * page_size; }
};

// The tensors of one call; null where the problem has none.
struct Buffers {
  const void* query;               // [tokens, q_heads, head_dim]
  const void* k_cache;             // the tensor that k.offset counts from
  const void* v_cache;             // k_cache unless separate_v
  const int32_t* context_lens;     // [max_seqs]
  const int32_t* block_tables;     // [max_seqs, max_pages_per_seq]
  const int32_t* query_start_loc;  // [max_seqs + 1]
  const int32_t* num_seqs;         // [1]
  const float* sinks;
  const float* k_scale;  // [1] or [kv_heads]
  const float* v_scale;
  const float* k_token_scales;  // [num_pages, page_size, kv_heads]
  const float* v_token_scales;
  void* out;   // [tokens, q_heads, head_dim]
  float* lse;  // [tokens, q_heads]
  void* workspace;
};

// What counts as a wrong index, the same in the reference and in every kernel. A sequence s is
// invalid, and its query rows (those that exist) become NaN (lse NaN), if
//   - query_start_loc[s] > query_start_loc[s + 1], or either lies outside [0, tokens], or
//   - context_lens[s] < 0 or > max_context, or
//   - one of the block_tables[s][0 .. ceil(context_len / page_size)) that the sequence reads lies
//     outside [0, num_pages).
// A table entry past context_len, or wholly outside the sliding window of every query row of the
// sequence, need not be read and then does not count. num_seqs is clamped to [0, max_seqs].
// Rows that belong to no sequence are 0 (lse -inf). Where sequences overlap because
// query_start_loc is not monotonic, a valid sequence keeps its rows against invalid ones; of two
// valid ones each kernel may choose whose result a row gets.
//
// What a row of a valid sequence gives:
//   - A row that sees no key is 0, such as those that stand before the first token because
//     context_len < query_len. The sink counts: lse is the sink's logit, -inf without sinks. A row
//     of whose keys every logit is -inf, and the sink too, is such a row.
//   - A key whose logit is -inf has weight 0; 0 times a value of NaN or infinity is NaN. A NaN or
//     +inf among a row's logits, sink included, makes the row NaN (lse NaN). With a soft cap, q.k
//     of +-inf is +-soft_cap.
//   - q.k and the sums of weight * value are f32. As long as they are finite, any finite scales and
//     sinks give the right row: factors of the logits are not to overflow before a row's maximum
//     has been subtracted, and log2(e) * sink not at all. lse is -+inf where it exceeds an f32.
//   - A token's scale is part of its key or value, which is stored * scale in f32; one that is
//     infinite counts as NaN, and so does an infinite k_scale.
//   - The error of f32 results does not grow with the number of keys. Where query and output are
//     bf16 and the cache is bf16 or fp8, a kernel may round the weights to bf16 (lse knows nothing
//     of it); else they are f32.
// ParseOptions refuses scales above kMaxFactor and soft caps outside [1 / kMaxFactor, kMaxFactor].
inline constexpr double kMaxFactor = 1e20;

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_PROBLEM_H_
