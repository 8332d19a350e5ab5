// xla-gpu bench: the speed of paged_attention through XLA, for a shape the user gives.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/cli/attention_batch.h"
#include "src/cli/cli.h"
#include "src/cli/json.h"
#include "src/cli/program.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

// The most a bench's tensors may take, so that a slip of the keyboard does not fill the machine.
constexpr double kMaxBytes = 32e9;

struct Options {
  std::string plugin, dtype = "bf16";
  std::vector<int64_t> contexts;
  AttentionBatch shape;
  int64_t seqs = 8, query_len = 1;
  bool json = false;
};

// One batch for each --context; without any, decode at two lengths and a prefill.
StatusOr<std::vector<AttentionBatch>> MakeBatches(const Options& options) {
  std::vector<AttentionBatch> batches;
  const auto add = [&](int64_t count, BatchSequence sequence) {
    AttentionBatch batch = options.shape;
    batch.dtype = *DTypeFromName(options.dtype);
    batch.sequences.assign(static_cast<size_t>(count), sequence);
    batches.push_back(std::move(batch));
  };
  for (const int64_t context : options.contexts) add(options.seqs, {options.query_len, context});
  if (batches.empty()) {
    add(options.seqs, {options.query_len, 4096});
    add(1, {options.query_len, 32768});
    add(1, {2048, 2048});
  }
  for (const AttentionBatch& batch : batches) {
    const BatchSequence& sequence = batch.sequences[0];
    if (sequence.context_len < sequence.query_len) {
      return InvalidArgument(StrCat("--context is ", sequence.context_len, " but --query-len is ",
                                    sequence.query_len, "; the context includes the new tokens"));
    }
    const double bytes = batch.kv_bytes() + batch.q_bytes();
    if (bytes > kMaxBytes) {
      return InvalidArgument(StrCat("the tensors of ", batch.Describe(), " would take ",
                                    bytes / 1e9, " GB; at most ", kMaxBytes / 1e9,
                                    " are allowed (--seqs, --context, the heads)"));
    }
  }
  return batches;
}

Status RunBench(const Options& options, const std::vector<AttentionBatch>& batches) {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(options.plugin));
  XLA_GPU_ASSIGN_OR_RETURN(const auto client, xla::PjrtClient::Create(plugin));
  nlohmann::ordered_json report = {{"plugin", plugin->path()},
                                   {"pjrt", plugin->pjrt_version().ToString()},
                                   {"device", client->device_kind()},
                                   {"results", nlohmann::ordered_json::array()}};
  if (!options.json) {
    std::printf("%s, %s\n%-46s %10s %10s %9s %9s\n", plugin->path().c_str(),
                client->device_kind().c_str(), "paged_attention", "median us", "best us", "GB/s KV",
                "GFLOP/s");
  }
  for (const AttentionBatch& batch : batches) {
    ShowProgress(batch.Describe());
    XLA_GPU_ASSIGN_OR_RETURN(const auto runner, BatchRunner::Create(client.get(), batch));
    XLA_GPU_ASSIGN_OR_RETURN(const std::vector<double> times, runner->Time());
    ShowProgress("");
    const double median = times[times.size() / 2];
    report["results"].push_back({{"batch", batch.Describe()},
                                 {"dtype", DTypeName(batch.dtype)},
                                 {"median_s", median},
                                 {"best_s", times[0]},
                                 {"kv_bytes", batch.kv_bytes()},
                                 {"flops", batch.flops()}});
    if (options.json) continue;
    std::printf("%-4s %-41s %10.1f %10.1f %9.1f %9.1f\n",
                std::string(DTypeName(batch.dtype)).c_str(), batch.Describe().c_str(), 1e6 * median,
                1e6 * times[0], batch.kv_bytes() / median / 1e9, batch.flops() / median / 1e9);
    std::fflush(stdout);
  }
  if (options.json) std::printf("%s\n", JsonText(report, 2).c_str());
  return OkStatus();
}

int Bench(const Invocation& invocation) {
  Options o;
  if (const auto code = invocation.Parse({
          PluginOption(&o.plugin),
          {"--seqs", "N", &o.seqs, "sequences in the batch"},
          {"--query-len", "N", &o.query_len, "new tokens of each sequence"},
          {"--context", "N", &o.contexts,
           "tokens of each, new ones included; default 4096, 32768 and a prefill"},
          {"--q-heads", "N", &o.shape.q_heads, "query heads"},
          {"--kv-heads", "N", &o.shape.kv_heads, "heads of keys and values"},
          {"--head-dim", "N", &o.shape.head_dim, "elements of a head"},
          {"--page-size", "N", &o.shape.page_size, "tokens of a page"},
          {"--dtype", "f32|bf16|f16", &o.dtype, "of queries and cache", {"f32", "bf16", "f16"}},
          {"--json", "", &o.json, "print JSON"},
      })) {
    return *code;
  }
  const auto batches = MakeBatches(o);
  if (!batches.ok()) return invocation.WrongUsage(batches.status().message());
  const Status status = RunBench(o, *batches);
  return status.ok() ? 0 : invocation.Fail(status);
}

XLA_GPU_CLI_COMMAND("bench", "speed of paged attention through XLA, for any shape",
                    "bench --plugin cpu --seqs 2 --context 512 --q-heads 8 --kv-heads 2", Bench);

}  // namespace
}  // namespace xla_gpu::cli
