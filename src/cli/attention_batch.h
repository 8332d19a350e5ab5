// Ragged batches for `xla-gpu demo` and `bench`: paged_attention's arguments with random contents,
// run and timed through XLA.
#ifndef XLA_GPU_CLI_ATTENTION_BATCH_H_
#define XLA_GPU_CLI_ATTENTION_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/host_tensor.h"
#include "src/core/op.h"
#include "src/xla/pjrt_client.h"

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

// One batch with its arguments on the device.
class BatchRunner {
 public:
  static StatusOr<std::unique_ptr<BatchRunner>> Create(const xla::PjrtClient* client,
                                                       const AttentionBatch& batch);

  // The call as the Host sees it: arguments and attributes, no results.
  Call call() const { return {views_, {}, &attributes_}; }

  // One run's `out`.
  StatusOr<HostTensor> Run() const;

  // Seconds of one call, in rising order, each the mean of a module of several calls in a row so
  // that the time is the kernel's and not the host's. The first runs, which may compile and
  // capture, are left out.
  StatusOr<std::vector<double>> Time() const;

 private:
  explicit BatchRunner(const xla::PjrtClient* client) : client_(client) {}
  StatusOr<xla::PjrtExecutable> Compile(int chain) const;

  const xla::PjrtClient* client_;
  std::vector<HostTensor> arguments_;
  std::vector<TensorView> views_;
  Attributes attributes_;
  std::vector<xla::DeviceBuffer> buffers_;
  std::vector<const xla::DeviceBuffer*> inputs_;
};

// Shows what is under way on the terminal's last line; "" clears it. Nothing if stderr is a file.
void ShowProgress(const std::string& text);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_ATTENTION_BATCH_H_
