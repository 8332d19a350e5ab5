#include "src/cli/batch_runner.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "src/core/op_registry.h"
#include "src/xla/op_registration.h"
#include "src/xla/stablehlo_module.h"

namespace xla_gpu::cli {

StatusOr<std::unique_ptr<BatchRunner>> BatchRunner::Create(const xla::PjrtClient* client,
                                                           const AttentionBatch& batch) {
  std::unique_ptr<BatchRunner> runner(new BatchRunner(client));
  runner->arguments_ = MakeArguments(batch);
  for (const HostTensor& argument : runner->arguments_) runner->views_.push_back(argument.view());
  XLA_GPU_RETURN_IF_ERROR(
      runner->attributes_.Add("scale", 1.0 / std::sqrt(static_cast<double>(batch.head_dim))));
  for (const TensorView& view : runner->views_) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, client->ToDevice(view));
    runner->buffers_.push_back(std::move(buffer));
  }
  for (const xla::DeviceBuffer& buffer : runner->buffers_) runner->inputs_.push_back(&buffer);
  return runner;
}

StatusOr<xla::PjrtExecutable> BatchRunner::Compile(int chain) const {
  XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Get("paged_attention"));
  const Platform platform = client_->plugin().is_gpu() ? Platform::kCuda : Platform::kHost;
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir,
                           xla::StableHloModule(*op, platform, call(), chain));
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(client_->plugin(), mlir));
  return client_->Compile(mlir);
}

StatusOr<HostTensor> BatchRunner::Run() const {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable once, Compile(1));
  XLA_GPU_ASSIGN_OR_RETURN(const auto outputs, once.Execute(inputs_));
  return outputs[0].ToHost();
}

StatusOr<std::vector<double>> BatchRunner::Time() const {
  using Clock = std::chrono::steady_clock;
  const bool gpu = client_->plugin().is_gpu();
  const int chain = gpu ? 32 : 2;
  const int warm_up = gpu ? 2 : 1;
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable chained, Compile(chain));
  std::vector<double> seconds;
  const auto start = Clock::now();
  for (int i = 0; i < 5 || Clock::now() - start < std::chrono::seconds(1); ++i) {
    const auto begin = Clock::now();
    XLA_GPU_RETURN_IF_ERROR(chained.Execute(inputs_).status());
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (i >= warm_up) seconds.push_back(taken.count() / chain);
    if (Clock::now() - start > std::chrono::seconds(4) && !seconds.empty()) break;
  }
  std::ranges::sort(seconds);
  return seconds;
}

void ShowProgress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

}  // namespace xla_gpu::cli
