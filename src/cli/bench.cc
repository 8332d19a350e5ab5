// xla-gpu bench: the speed of paged_attention through XLA, for a shape the user gives.
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/cli/attention_batch.h"
#include "src/cli/batch_runner.h"
#include "src/cli/cli.h"
#include "src/cli/json.h"
#include "src/cli/options.h"
#include "src/cli/program.h"

namespace xla_gpu::cli {
namespace {

constexpr char kUsage[] =
    "bench [--plugin PATH|cpu|cuda] [--seqs N] [--query-len N] [--context N]... [--q-heads N] "
    "[--kv-heads N] [--head-dim N] [--page-size N] [--dtype f32|bf16|f16] [--json]";

// The most a bench's tensors may take, so that a slip of the keyboard does not fill the machine.
constexpr double kMaxCacheBytes = 32e9;

struct Options {
  std::string plugin, seqs, query_len, q_heads, kv_heads, head_dim, page_size, dtype = "bf16";
  std::vector<std::string> contexts;
  bool json = false;
};

StatusOr<int64_t> ParseCount(const std::string& name, const std::string& text, int64_t fallback) {
  if (text.empty()) return fallback;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 24) {
    return InvalidArgument(
        StrCat(name, " is '", text, "'; it must be a whole number from 1 to ", 1 << 24));
  }
  return value;
}

// One batch for each --context; without any, decode at two lengths and a prefill.
StatusOr<std::vector<AttentionBatch>> MakeBatches(const Options& options) {
  AttentionBatch shape;
  XLA_GPU_ASSIGN_OR_RETURN(shape.q_heads, ParseCount("--q-heads", options.q_heads, 32));
  XLA_GPU_ASSIGN_OR_RETURN(shape.kv_heads, ParseCount("--kv-heads", options.kv_heads, 8));
  XLA_GPU_ASSIGN_OR_RETURN(shape.head_dim, ParseCount("--head-dim", options.head_dim, 128));
  XLA_GPU_ASSIGN_OR_RETURN(shape.page_size, ParseCount("--page-size", options.page_size, 16));
  const std::optional<DType> dtype = DTypeFromName(options.dtype);
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return InvalidArgument(StrCat("--dtype is '", options.dtype, "'; allowed: f32, bf16, f16"));
  }
  shape.dtype = *dtype;
  XLA_GPU_ASSIGN_OR_RETURN(const int64_t query_len,
                           ParseCount("--query-len", options.query_len, 1));
  XLA_GPU_ASSIGN_OR_RETURN(const int64_t seqs, ParseCount("--seqs", options.seqs, 8));

  std::vector<AttentionBatch> batches;
  const auto add = [&](int64_t count, BatchSequence sequence) {
    AttentionBatch batch = shape;
    batch.name = sequence.query_len == 1 ? "decode" : "prefill";
    batch.sequences.assign(static_cast<size_t>(count), sequence);
    batches.push_back(std::move(batch));
  };
  for (const std::string& text : options.contexts) {
    XLA_GPU_ASSIGN_OR_RETURN(const int64_t context, ParseCount("--context", text, 0));
    if (context < query_len) {
      return InvalidArgument(StrCat("--context is ", context, " but --query-len is ", query_len,
                                    "; the context includes the new tokens"));
    }
    add(seqs, {query_len, context});
  }
  if (batches.empty()) {
    add(seqs, {1, 4096});
    add(1, {1, 32768});
    add(1, {2048, 2048});
  }
  for (const AttentionBatch& batch : batches) {
    if (batch.kv_bytes() > kMaxCacheBytes) {
      return InvalidArgument(StrCat("the cache of ", batch.Describe(), " would take ",
                                    batch.kv_bytes() / 1e9, " GB; at most ", kMaxCacheBytes / 1e9,
                                    " are allowed (--seqs, --context)"));
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

int BenchMain(const Args& args) {
  Options o;
  const auto rest = ParseOptions(args, {{.name = "--plugin", .value = &o.plugin},
                                        {.name = "--seqs", .value = &o.seqs},
                                        {.name = "--query-len", .value = &o.query_len},
                                        {.name = "--context", .values = &o.contexts},
                                        {.name = "--q-heads", .value = &o.q_heads},
                                        {.name = "--kv-heads", .value = &o.kv_heads},
                                        {.name = "--head-dim", .value = &o.head_dim},
                                        {.name = "--page-size", .value = &o.page_size},
                                        {.name = "--dtype", .value = &o.dtype},
                                        {.name = "--json", .flag = &o.json}});
  if (!rest.ok()) return FailUsage("bench", rest.status().message());
  if (!rest->empty()) return FailUsage("bench", StrCat("argument ", (*rest)[0], " is unknown"));
  const auto batches = MakeBatches(o);
  if (!batches.ok()) return FailUsage("bench", batches.status().message());
  QuietXla();
  const Status status = RunBench(o, *batches);
  return status.ok() ? 0 : Fail("bench", status);
}

XLA_GPU_CLI_COMMAND("bench", kUsage, "speed of paged attention through XLA, for any shape",
                    BenchMain);

}  // namespace
}  // namespace xla_gpu::cli
