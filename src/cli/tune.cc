// xla-gpu tune: times the ways in which the GPU can run paged_attention, and keeps the fastest.
#include <cstdio>

#include "src/cli/attention_batch.h"
#include "src/cli/cli.h"
#include "src/cli/tune_shape.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/tuning.h"

namespace xla_gpu::cli {
namespace {

using paged_attention::TuningTable;

// The user's table; a new one where another version of the library made it.
StatusOr<TuningTable> ReadTable() {
  StatusOr<TuningTable> table = TuningTable::Read();
  if (table.status().code() != StatusCode::kFailedPrecondition) return table;
  LogWarning(table.status().message());
  return TuningTable();
}

Status ListTable() {
  XLA_GPU_ASSIGN_OR_RETURN(const TuningTable table, TuningTable::Read());
  std::string device;
  for (const auto& [of, launches] : table.choices) {  // in order of devices
    if (of.first != device) std::printf("%s\n", (device = of.first).c_str());
    std::printf("  %s: %s\n", of.second.c_str(), launches.c_str());
  }
  std::printf("%zu choices in %s\n", table.choices.size(), TuningTable::Place().c_str());
  return OkStatus();
}

Status ClearTable() {
  XLA_GPU_ASSIGN_OR_RETURN(const TuningTable table, ReadTable());
  if (!table.choices.empty()) XLA_GPU_RETURN_IF_ERROR(TuningTable().Write());
  std::printf("%zu choices removed\n", table.choices.size());
  return OkStatus();
}

Status Tune(const TuneShape& shape, const std::vector<int64_t>& contexts, bool dry_run) {
  TuningTable table;
  if (!dry_run) {
    XLA_GPU_ASSIGN_OR_RETURN(table, ReadTable());
    if (TuningTable::Place().empty()) return table.Write();  // the error, before the work
  }
  for (const int64_t context : contexts) {
    TuneShape one = shape;
    one.context = context;
    // A device for each, which frees the memory of the one before.
    XLA_GPU_ASSIGN_OR_RETURN(const auto device, cuda::BenchDevice::Open(0));
    const std::string name = paged_attention::Describe(device->info());
    const StatusOr<TunedProblem> tuned = TimeChoices(*device, one, ShowProgress);
    ShowProgress("");
    XLA_GPU_RETURN_IF_ERROR(tuned.status());
    const std::string problem = Describe(tuned->problem);
    const size_t best = BestOf(tuned->choices);
    std::printf("%s\n%s\n", name.c_str(), problem.c_str());
    for (size_t i = 0; i < tuned->choices.size(); ++i) {
      const auto& [launches, microseconds] = tuned->choices[i];
      const char* whose = i == 0 ? "  the model's choice" : "";
      std::printf("%12.1f us  %s%s%s\n", microseconds, launches.c_str(), whose,
                  i == best ? "  <- taken" : "");
    }
    std::fflush(stdout);
    table.choices[{name, problem}] = tuned->choices[best].launches;
    if (!dry_run) XLA_GPU_RETURN_IF_ERROR(table.Write());
  }
  if (!dry_run) {
    std::printf("kept in %s (%zu choices)\n", TuningTable::Place().c_str(), table.choices.size());
  }
  return OkStatus();
}

int RunTune(const Invocation& invocation) {
  TuneShape shape;
  std::vector<int64_t> contexts;
  std::string dtype = "bf16", cache_dtype;
  bool dry_run = false, list = false, clear = false;
  if (const auto code = invocation.Parse({
          {"--seqs", "N", &shape.seqs, "sequences in the batch"},
          {"--query-len", "N", &shape.query_len, "new tokens of each sequence"},
          {"--context", "N", &contexts, "tokens of each, new ones included; default 4096"},
          {"--ragged", "", &shape.ragged, "contexts of all lengths up to --context"},
          {"--chunk", "N", &shape.chunk, "new tokens of one more sequence", {}, 0},
          {"--chunk-context", "N", &shape.chunk_context, "its tokens, 0 for --context", {}, 0},
          {"--q-heads", "N", &shape.q_heads, "query heads"},
          {"--kv-heads", "N", &shape.kv_heads, "heads of keys and values"},
          {"--head-dim", "N", &shape.head_dim, "elements of a head"},
          {"--page-size", "N", &shape.page_size, "tokens of a page"},
          {"--dtype", "f32|bf16|f16", &dtype, "of queries", {"f32", "bf16", "f16"}},
          {"--cache-dtype",
           "TYPE",
           &cache_dtype,
           "of the cache, f8e4m3fn or f8e5m2 too; default: of queries",
           {"f32", "bf16", "f16", "f8e4m3fn", "f8e5m2"}},
          {"--window", "N", &shape.window, "keys that a query sees, 0 for all", {}, 0},
          {"--soft-cap", "N", &shape.soft_cap, "of the logits, 0 for none", {}, 0},
          {"--max-query-len",
           "N",
           &shape.max_query_len,
           "most new tokens of a sequence, as promised, 0: no promise",
           {},
           0},
          {"--max-seqs", "N", &shape.max_seqs, "sequences that there is room for", {}, 0},
          {"--max-tokens", "N", &shape.max_tokens, "rows of the query", {}, 0},
          {"--max-context", "N", &shape.max_context, "tokens that a table has room for", {}, 0},
          {"--dry-run", "", &dry_run, "keep nothing"},
          {"--list", "", &list, "show what is kept"},
          {"--clear", "", &clear, "remove what is kept"},
      })) {
    return *code;
  }
  if (list && clear) return invocation.WrongUsage("--list and --clear exclude each other");
  if (list || clear) {
    const Status status = clear ? ClearTable() : ListTable();
    return status.ok() ? 0 : invocation.Fail(status);
  }
  shape.dtype = *DTypeFromName(dtype);
  shape.cache_dtype = cache_dtype.empty() ? shape.dtype : *DTypeFromName(cache_dtype);
  if (contexts.empty()) contexts = {shape.context};
  for (const int64_t context : contexts) {
    TuneShape one = shape;
    one.context = context;
    if (const Status status = one.Check(); !status.ok()) {
      return invocation.WrongUsage(status.message());
    }
  }
  const Status status = Tune(shape, contexts, dry_run);
  return status.ok() ? 0 : invocation.Fail(status);
}

XLA_GPU_CLI_COMMAND("tune", "time the kernels that paged attention may take, keep the fastest",
                    "tune --list", RunTune);

}  // namespace
}  // namespace xla_gpu::cli
