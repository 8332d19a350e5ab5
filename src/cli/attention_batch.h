// Ragged batches for `xla-gpu demo` and `bench`: paged_attention's arguments with random contents.
#ifndef XLA_GPU_CLI_ATTENTION_BATCH_H_
#define XLA_GPU_CLI_ATTENTION_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/host_tensor.h"
#include "src/core/op.h"

namespace xla_gpu::cli {

struct BatchSequence {
  int64_t query_len;
  int64_t context_len;  // the new tokens included
};

struct AttentionBatch {
  std::string name;
  std::vector<BatchSequence> sequences;
  int64_t q_heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  int64_t page_size = 16;
  DType dtype = DType::kBF16;

  int64_t tokens() const;
  // Bytes of keys and values that the batch reads once each.
  double kv_bytes() const;
  // Of the queries.
  double q_bytes() const;
  // Multiplications and additions of both matrix products, masked ones left out.
  double flops() const;
  // "8 sequences, 8 tokens, context 4096"
  std::string Describe() const;
};

// The op's arguments in schema order. Pages are handed out in random order, as a server's would be
// after a while; what lies past a context is NaN, which nothing may read.
std::vector<HostTensor> MakeArguments(const AttentionBatch& batch);

struct BatchError {
  double max = 0;       // largest |result - exact|
  double rms = 0;       // root of the mean square of it
  double rounding = 0;  // the same for the exact result rounded to the result's type
};

// Against the fp64 reference, for the first `num_sequences` sequences.
StatusOr<BatchError> CompareWithReference(const AttentionBatch& batch, const Call& call,
                                          const HostTensor& result, int64_t num_sequences);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_ATTENTION_BATCH_H_
