#include "src/ops/paged_attention/cuda/config.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/family.h"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kLeastScheduleThreads = 128;
constexpr int64_t kMostScheduleThreads = 1024;

// ceil(2^(31 + b) / d) with 2^(b - 1) < d <= 2^b fits 32 bits and divides 31-bit numbers exactly.
Divisor DivisorOf(int64_t d) {
  int bits = 0;
  while ((int64_t{1} << bits) < d) ++bits;
  if (bits == 0) return {};
  return {static_cast<unsigned>(CeilDiv(int64_t{1} << (31 + bits), d)), bits - 1};
}

Config MakeConfig(const Problem& problem, const cuda::DeviceInfo& device, const Choice& choice) {
  Config config{.aligned = choice.aligned};
  config.decode_max_rows = problem.batch_invariant ? kDecodeTileRows : 2 * kDecodeTileRows;
  for (const Family* family : kFamilies) {
    const Share share = family->take(problem, device, choice, config);
    if (share != Share::kNone) config.families.push_back(family);
    if (share == Share::kRest) break;
  }
  config.workers = static_cast<int>(
      std::min(int64_t{config.blocks_per_sm} * device.num_sms, MostWorkers(problem)));
  if (config.prefill_workers == 0) config.prefill_workers = config.workers;
  config.overlaps = device.Arch() == "sm_90a" && (config.decode_cluster == 0 || config.many_seqs);
  // A thread a sequence, and a prefill item; fewer threads have shorter barriers.
  const int64_t items = config.prefill_launch
                            ? CeilDiv(problem.tokens * problem.group_size(), config.prefill_rows)
                            : 0;
  const int64_t wanted = std::max(std::min(problem.max_seqs, kMostScheduleThreads),
                                  std::min(items, kMostScheduleThreads / 2));
  config.schedule_threads = kLeastScheduleThreads;
  while (config.schedule_threads < wanted) config.schedule_threads *= 2;
  return config;
}

}  // namespace

StatusOr<Config> ChooseConfig(const Problem& problem, const cuda::DeviceInfo& device,
                              bool aligned) {
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability("paged_attention", device));
  // Rows and places in the partial results are counted in 32 bits.
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  if (problem.tokens * problem.q_heads > kMaxInt || layout.partial_capacity > kMaxInt) {
    return Unimplemented("paged_attention: ", problem.tokens, " tokens of ", problem.q_heads,
                         " heads are too many for the CUDA kernels, which take up to 2^31 "
                         "rows; split the batch");
  }
  return MakeConfig(problem, device, {.aligned = aligned});
}

StatusOr<std::vector<Config>> Alternatives(const Problem& problem, const cuda::DeviceInfo& device) {
  XLA_GPU_ASSIGN_OR_RETURN(const Config model, ChooseConfig(problem, device));
  std::vector<Config> alternatives = {model};
  if (problem.batch_invariant) return alternatives;
  std::vector<Choice> choices;
  for (const int cluster : {16, 8, 6, 4, 2, 1}) choices.push_back({.cluster = cluster});
  for (const bool decode : {true, false}) {
    for (const bool prefill : {true, false}) choices.push_back({prefill, decode, 0});
  }
  for (const Choice& choice : choices) {
    const Config config = MakeConfig(problem, device, choice);
    const bool known =
        std::ranges::find(alternatives, NameOf(config), NameOf) != alternatives.end();
    if (!known && config.decode_cluster == choice.cluster) alternatives.push_back(config);
  }
  return alternatives;
}

std::string NameOf(const Config& config) {
  if (config.decode_cluster > 0) return StrCat("cluster", config.decode_cluster);
  if (config.line_only) return "decode";
  return StrCat(config.prefill_launch ? "prefill+" : "", "attend",
                config.decode_launch ? "+decode" : "");
}

std::vector<std::string> TypeDefines(const Problem& problem, const Config& config) {
  // The short form of tanh has an absolute error of 2^-23, which a large cap would multiply.
  const bool exact =
      config.exact_tanh || problem.query_dtype == DType::kF32 || problem.soft_cap > 256;
  const bool plain = !problem.has_sinks && !problem.return_lse && problem.scale >= 0 &&
                     !problem.has_k_scale() && !problem.has_v_scale();
  return {StrCat("QUERY_TYPE=", InfoOf(problem.query_dtype).device),
          StrCat("CACHE_TYPE=", InfoOf(problem.cache_dtype).device),
          StrCat("OUT_TYPE=", InfoOf(problem.out_dtype).device),
          StrCat("HEAD_DIM=", problem.head_dim),
          StrCat("SOFT_CAP=", problem.soft_cap == 0 ? 0
                              : exact               ? 2
                                                    : 1),
          StrCat("PLAIN=", plain ? 1 : 0)};
}

void AddAttend(const Problem& problem, const Config& config, const char* source,
               const std::vector<std::string>& own, std::vector<KernelLaunch>& launches) {
  if (config.line_only) return;
  std::vector<std::string> defines = TypeDefines(problem, config);
  defines.insert(defines.end(), own.begin(), own.end());
  if (!config.aligned) defines.push_back("UNALIGNED");
  if (problem.has_token_scales()) defines.push_back("TOKEN_SCALES");
  launches.push_back({{StrCat(kFolder, source), "paged_attention_attend", std::move(defines)},
                      {.grid = {static_cast<uint32_t>(config.workers), 1, 1},
                       .block = {kAttendThreads, 1, 1},
                       .dynamic_shared_bytes = static_cast<uint32_t>(config.shared_bytes)}});
}

Launches MakeLaunches(const Problem& problem, const Config& config) {
  Launches launches;
  launches.schedule = {{StrCat(kFolder, "schedule.cu"),
                        "paged_attention_schedule",
                        {StrCat("SCHEDULE_THREADS=", config.schedule_threads),
                         StrCat("LINE_ONLY=", config.line_only ? 1 : 0)}},
                       {.block = {static_cast<uint32_t>(config.schedule_threads), 1, 1},
                        .programmatic = config.overlaps && config.prefill_launch}};
  for (const Family* family : config.families) family->launch(problem, config, launches.attend);
  for (KernelLaunch& launch : launches.attend) launch.config.programmatic = config.overlaps;
  return launches;
}

PlannedParams PlanParams(const Problem& problem, const Config& config) {
  const int64_t element = DTypeSize(problem.cache_dtype);
  PlannedParams planned{.params = {},
                        .workspace = MakeWorkspaceLayout(problem),
                        .k_offset = problem.k.offset * element,
                        .v_offset = problem.v.offset * element};
  Params& p = planned.params;
  static_cast<Options&>(p) = problem;
  p.page_stride = problem.k.page_stride * element;
  p.token_stride = problem.k.token_stride * element;
  p.head_stride = problem.k.head_stride * element;
  p.tokens = static_cast<int>(problem.tokens);
  p.q_heads = static_cast<int>(problem.q_heads);
  p.kv_heads = static_cast<int>(problem.kv_heads);
  p.group_size = static_cast<int>(problem.group_size());
  p.head_dim = static_cast<int>(problem.head_dim);
  // A larger page size or page count than 2^31 - 1 cannot be addressed by any context or table.
  p.num_pages = static_cast<int>(std::min(problem.num_pages, kMaxInt));
  p.page_size = static_cast<int>(std::min(problem.page_size, kMaxInt));
  p.by_group = DivisorOf(p.group_size);
  p.by_page = DivisorOf(p.page_size);
  p.box_tokens = BoxTokens(problem);
  p.max_seqs = static_cast<int>(problem.max_seqs);
  p.max_pages = static_cast<int>(problem.max_pages_per_seq);
  p.k_scale_step = problem.k_scale_size > 1 ? 1 : 0;
  p.v_scale_step = problem.v_scale_size > 1 ? 1 : 0;
  // Positions are 32-bit; the margin keeps the ends of the last tiles from overflowing, and a
  // window before as many positions as there may be before the first key.
  const int64_t margin = std::max(problem.tokens, int64_t{4096});
  p.max_context = static_cast<int>(std::min(problem.max_context(), kMaxInt - margin));
  // A larger one hides nothing more.
  p.window = static_cast<int>(std::min(problem.sliding_window, int64_t{p.max_context}));
  p.workers = config.workers;
  p.prefill_workers = config.prefill_workers;
  p.prefill_launch = config.prefill_launch ? 1 : 0;
  p.copied_only = config.prefill_launch && IsSplit(problem) ? 1 : 0;
  p.workers_per_sm = config.blocks_per_sm;
  p.prefill_tile_rows = config.prefill_launch && p.copied_only == 0
                            ? config.prefill_blocks * config.prefill_rows
                            : config.tile_rows;
  p.own_work = problem.max_seqs <= config.own_seqs ? 1 : 0;
  p.copy_capacity = static_cast<int>(config.copy_tokens);
  p.least_copy_rows = LeastCopyRows(problem);
  p.copied_workers = config.copied_workers;
  p.copied_tile_rows = config.copied_blocks * config.copied_rows;
  p.decode_max_rows = config.decode_max_rows;
  p.decode_ranges = config.decode_ranges;
  p.line_rows = LineRows(problem);
  p.tile_blocks = config.tile_blocks;
  p.line_partials = static_cast<int>(planned.workspace.line_partials);
  p.line_only = config.line_only ? 1 : 0;
  p.decode_workers = config.decode_workers;
  // item_capacity is for no more, also where no launch takes the line.
  p.partial_capacity =
      static_cast<int>(planned.workspace.line_partials > 0 ? planned.workspace.line_partials
                                                           : planned.workspace.partial_capacity);
  p.item_capacity = static_cast<int>(planned.workspace.item_capacity);
  return planned;
}

}  // namespace xla_gpu::paged_attention
