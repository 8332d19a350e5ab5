// xla-gpu demo: paged attention of ragged batches through XLA, from C++ alone.
#include <cstdio>

#include "src/cli/attention_batch.h"
#include "src/cli/cli.h"
#include "src/cli/program.h"
#include "src/core/strings.h"
#include "src/xla/hlo_text.h"
#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {
namespace {

// The error may exceed that of rounding the exact result by what f32 sums and bf16 softmax weights
// add; a wrong mask, page or head is off by a hundred times more.
constexpr double kErrorFactor = 4.0;

// A GPU gets more sequences of the same lengths.
std::vector<AttentionBatch> Batches(bool gpu) {
  AttentionBatch decode{.name = "decode"};
  for (int i = 0; i < (gpu ? 32 : 8); ++i) decode.sequences.push_back({1, 4096});
  AttentionBatch prefill{.name = "prefill"};
  for (int i = 0; i < (gpu ? 16 : 1); ++i) prefill.sequences.push_back({512, 512});
  // A server's step: some sequences decode, one is new, two continue a long prompt in chunks.
  AttentionBatch mixed{
      .name = "mixed",
      .sequences = {{1, 3001}, {1, 517}, {1, 2048}, {128, 128}, {96, 1111}, {64, 2077}}};
  for (int i = 0; gpu && i < 26; ++i) mixed.sequences.push_back({1, 1500 + 97 * i});
  return {decode, prefill, mixed};
}

// How many of the batch's first sequences the reference can check in a few seconds; at least one.
int64_t CheckedSequences(const AttentionBatch& batch) {
  constexpr double kFlops = 4.5e9;
  AttentionBatch part = batch;
  while (part.sequences.size() > 1 && part.flops() > kFlops) part.sequences.pop_back();
  return static_cast<int64_t>(part.sequences.size());
}

// Runs one batch and prints its lines. False if its numbers are wrong.
StatusOr<bool> DemoBatch(const xla::PjrtClient* client, const AttentionBatch& batch) {
  ShowProgress(batch.name + ": filling the cache");
  XLA_GPU_ASSIGN_OR_RETURN(const auto runner, BatchRunner::Create(client, batch));
  ShowProgress(batch.name + ": compiling and running");
  XLA_GPU_ASSIGN_OR_RETURN(const HostTensor result, runner->Run());
  ShowProgress(batch.name + ": timing");
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<double> times, runner->Time());
  const double seconds = times[times.size() / 2];
  ShowProgress(batch.name + ": comparing with fp64");
  XLA_GPU_ASSIGN_OR_RETURN(
      const BatchError error,
      CompareWithReference(batch, runner->call(), result, CheckedSequences(batch)));
  const bool right = error.rms <= kErrorFactor * error.rounding;  // false for NaN
  ShowProgress("");
  std::printf("%-8s %s\n", batch.name.c_str(), batch.Describe().c_str());
  std::printf("         %.3f ms, %.1f GB/s of KV, %.1f GFLOP/s\n", 1e3 * seconds,
              batch.kv_bytes() / seconds / 1e9, batch.flops() / seconds / 1e9);
  std::printf("         error: max %.1e, rms %.1e (%.1e by rounding to %s alone)%s\n", error.max,
              error.rms, error.rounding, std::string(DTypeName(result.dtype)).c_str(),
              right ? "" : "  WRONG");
  std::fflush(stdout);
  return right;
}

Status RunDemo(const std::string& plugin_name, bool* right) {
  const HloDump dump;
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(plugin_name));
  XLA_GPU_ASSIGN_OR_RETURN(const auto client, xla::PjrtClient::Create(plugin));
  std::printf("XLA: %s (PJRT %s), device '%s'\n", plugin->path().c_str(),
              plugin->pjrt_version().ToString().c_str(), client->device_kind().c_str());
  const std::vector<AttentionBatch> batches = Batches(plugin->is_gpu());
  const AttentionBatch& first = batches[0];
  std::printf("paged_attention: %s, %lld query and %lld kv heads, head_dim %lld, page %lld\n\n",
              std::string(DTypeName(first.dtype)).c_str(), static_cast<long long>(first.q_heads),
              static_cast<long long>(first.kv_heads), static_cast<long long>(first.head_dim),
              static_cast<long long>(first.page_size));
  *right = true;
  for (const AttentionBatch& batch : batches) {
    XLA_GPU_ASSIGN_OR_RETURN(const bool good, DemoBatch(client.get(), batch));
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

int Demo(const Invocation& invocation) {
  std::string plugin;
  if (const auto code = invocation.Parse({PluginOption(&plugin)})) return *code;
  bool right = false;
  const Status status = RunDemo(plugin, &right);
  if (!status.ok()) return invocation.Fail(status);
  return right ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("demo", "paged attention of ragged batches through XLA", "demo --plugin cpu",
                    Demo);

}  // namespace
}  // namespace xla_gpu::cli
