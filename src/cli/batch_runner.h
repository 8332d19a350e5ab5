// Runs and times paged_attention batches through XLA: what `xla-gpu demo` and `bench` share.
#ifndef XLA_GPU_CLI_BATCH_RUNNER_H_
#define XLA_GPU_CLI_BATCH_RUNNER_H_

#include <memory>
#include <string>
#include <vector>

#include "src/cli/attention_batch.h"
#include "src/core/host_tensor.h"
#include "src/core/op.h"
#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {

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

#endif  // XLA_GPU_CLI_BATCH_RUNNER_H_
