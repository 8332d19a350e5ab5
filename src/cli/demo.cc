// xla-gpu demo: paged attention of ragged batches through XLA, from C++ alone.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "src/cli/cli.h"
#include "src/cli/demo_batch.h"
#include "src/cli/options.h"
#include "src/cli/program.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/xla/hlo_text.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_client.h"
#include "src/xla/stablehlo_module.h"

namespace xla_gpu::cli {
namespace {

constexpr char kUsage[] = "demo [--plugin PATH|cpu|cuda]";

// The error may exceed that of rounding the exact result by what f32 sums and bf16 softmax weights
// add; a wrong mask, page or head is off by a hundred times more.
constexpr double kErrorFactor = 4.0;

// A GPU gets more sequences of the same lengths.
std::vector<DemoBatch> Batches(bool gpu) {
  DemoBatch decode{.name = "decode"};
  for (int i = 0; i < (gpu ? 32 : 8); ++i) decode.sequences.push_back({1, 4096});
  DemoBatch prefill{.name = "prefill"};
  for (int i = 0; i < (gpu ? 16 : 1); ++i) prefill.sequences.push_back({512, 512});
  // A server's step: some sequences decode, one is new, two continue a long prompt in chunks.
  DemoBatch mixed{
      .name = "mixed",
      .sequences = {{1, 3001}, {1, 517}, {1, 2048}, {128, 128}, {96, 1111}, {64, 2077}}};
  for (int i = 0; gpu && i < 26; ++i) mixed.sequences.push_back({1, 1500 + 97 * i});
  return {decode, prefill, mixed};
}

// How many of the batch's first sequences the reference can check in a few seconds; at least one.
int64_t CheckedSequences(const DemoBatch& batch) {
  constexpr double kFlops = 4.5e9;
  DemoBatch part = batch;
  while (part.sequences.size() > 1 && part.flops() > kFlops) part.sequences.pop_back();
  return static_cast<int64_t>(part.sequences.size());
}

class Demo {
 public:
  explicit Demo(const xla::PjrtClient* client)
      : client_(client), gpu_(client->plugin().is_gpu()), op_(*OpRegistry::Global().Get(kOp)) {}

  // Runs one batch and prints its line. False if its numbers are wrong.
  StatusOr<bool> Run(const DemoBatch& batch) {
    Progress(batch.name + ": filling the cache");
    const std::vector<HostTensor> arguments = MakeDemoArguments(batch);
    std::vector<TensorView> views;
    for (const HostTensor& argument : arguments) views.push_back(argument.view());
    Attributes attributes;
    XLA_GPU_RETURN_IF_ERROR(
        attributes.Add("scale", 1.0 / std::sqrt(static_cast<double>(batch.head_dim))));
    const Call call{views, {}, &attributes};

    Progress(batch.name + ": compiling and running");
    const int chain = gpu_ ? 32 : 2;
    XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable once, Compile(call, 1));
    XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable chained, Compile(call, chain));
    std::vector<xla::DeviceBuffer> buffers;
    for (const TensorView& view : views) {
      XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, client_->ToDevice(view));
      buffers.push_back(std::move(buffer));
    }
    std::vector<const xla::DeviceBuffer*> inputs;
    for (const xla::DeviceBuffer& buffer : buffers) inputs.push_back(&buffer);
    XLA_GPU_ASSIGN_OR_RETURN(const auto outputs, once.Execute(inputs));
    XLA_GPU_ASSIGN_OR_RETURN(const HostTensor result, outputs[0].ToHost());
    Progress(batch.name + ": timing");
    XLA_GPU_ASSIGN_OR_RETURN(const double seconds, Time(chained, inputs, chain));

    Progress(batch.name + ": comparing with fp64");
    XLA_GPU_ASSIGN_OR_RETURN(const DemoError error,
                             CompareWithReference(batch, call, result, CheckedSequences(batch)));
    const bool right = error.rms <= kErrorFactor * error.rounding;  // false for NaN
    Progress("");
    std::printf("%-8s %s\n", batch.name.c_str(), batch.Describe().c_str());
    std::printf("         %.3f ms, %.1f GB/s of KV, %.1f GFLOP/s\n", 1e3 * seconds,
                batch.kv_bytes() / seconds / 1e9, batch.flops() / seconds / 1e9);
    std::printf("         error: max %.1e, rms %.1e (%.1e by rounding to %s alone)%s\n", error.max,
                error.rms, error.rounding, std::string(DTypeName(result.dtype)).c_str(),
                right ? "" : "  WRONG");
    std::fflush(stdout);
    return right;
  }

 private:
  static constexpr char kOp[] = "paged_attention";

  StatusOr<xla::PjrtExecutable> Compile(const Call& call, int chain) const {
    const Platform platform = gpu_ ? Platform::kCuda : Platform::kHost;
    XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir,
                             xla::StableHloModule(*op_, platform, call, chain));
    XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(client_->plugin(), mlir));
    return client_->Compile(mlir);
  }

  // The median time of one call.
  StatusOr<double> Time(const xla::PjrtExecutable& chained,
                        const std::vector<const xla::DeviceBuffer*>& inputs, int chain) const {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    const auto start = Clock::now();
    // On a GPU the first runs compile kernels and capture the graph.
    const int warm_up = gpu_ ? 2 : 1;
    for (int i = 0; i < 5 || Clock::now() - start < std::chrono::seconds(1); ++i) {
      const auto begin = Clock::now();
      XLA_GPU_RETURN_IF_ERROR(chained.Execute(inputs).status());
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (i >= warm_up) seconds.push_back(taken.count() / chain);
      if (Clock::now() - start > std::chrono::seconds(4) && !seconds.empty()) break;
    }
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2));
    return seconds[seconds.size() / 2];
  }

  static void Progress(const std::string& text) {
    if (isatty(STDERR_FILENO) == 0) return;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
  }

  const xla::PjrtClient* client_;
  const bool gpu_;
  const Op* op_;
};

Status RunDemo(const std::string& plugin_name, bool* right) {
  const HloDump dump;
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(plugin_name));
  XLA_GPU_ASSIGN_OR_RETURN(const auto client, xla::PjrtClient::Create(plugin));
  std::printf("XLA: %s (PJRT %s), device '%s'\n", plugin->path().c_str(),
              plugin->pjrt_version().ToString().c_str(), client->device_kind().c_str());
  Demo demo(client.get());
  const std::vector<DemoBatch> batches = Batches(plugin->is_gpu());
  const DemoBatch& first = batches[0];
  std::printf("paged_attention: %s, %lld query and %lld kv heads, head_dim %lld, page %lld\n\n",
              std::string(DTypeName(first.dtype)).c_str(), static_cast<long long>(first.q_heads),
              static_cast<long long>(first.kv_heads), static_cast<long long>(first.head_dim),
              static_cast<long long>(first.page_size));
  *right = true;
  for (const DemoBatch& batch : batches) {
    XLA_GPU_ASSIGN_OR_RETURN(const bool good, demo.Run(batch));
    *right = *right && good;
  }
  XLA_GPU_ASSIGN_OR_RETURN(const auto modules, dump.Read());
  for (const xla::HloModuleText& module : modules) {
    for (const xla::HloCustomCall& call : xla::FindHloCustomCalls(module.text)) {
      if (call.target != "xla_gpu_paged_attention") continue;
      std::printf("\nThe call in XLA's optimised HLO:\n  %s\n", call.line.c_str());
      return OkStatus();
    }
  }
  return Internal("the optimised modules hold no call of xla_gpu_paged_attention");
}

int DemoMain(const Args& args) {
  std::string plugin;
  const auto rest = ParseOptions(args, {{.name = "--plugin", .value = &plugin}});
  if (!rest.ok()) return FailUsage("demo", rest.status().message());
  if (!rest->empty()) return FailUsage("demo", StrCat("argument ", (*rest)[0], " is unknown"));
  QuietXla();
  bool right = false;
  const Status status = RunDemo(plugin, &right);
  if (!status.ok()) return Fail("demo", status);
  return right ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("demo", kUsage, "paged attention of ragged batches through XLA", DemoMain);

}  // namespace
}  // namespace xla_gpu::cli
