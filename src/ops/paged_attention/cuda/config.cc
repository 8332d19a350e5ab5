#include "src/ops/paged_attention/cuda/config.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config_parts.h"
#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int kLeastScheduleThreads = 128;
constexpr int64_t kMostScheduleThreads = 1024;
// What the runtime reserves of an SM's shared memory for each block, and our kernels' static part.
constexpr int64_t kReservedSharedBytes = 1024 + 2560;

int FragmentKeys(const Problem& problem) { return IsSplit(problem) ? 8 : 16; }
int64_t LeastDecodeBytes(const Problem& problem) {
  const int64_t row = OwnDims(problem) * DTypeSize(problem.cache_dtype) + 16;
  return int64_t{2} * kAttendWarps * 2 * FragmentKeys(problem) * row;
}

// What mma_tile.cuh takes of it: tiles, and of wide heads an exchange. 0 if decode has no room.
int64_t TensorCoreSharedBytes(const Problem& problem, int tile_rows, int tile_keys) {
  const int64_t element = DTypeSize(problem.cache_dtype);
  const int64_t padded = Parts(problem) * OwnDims(problem);
  const int64_t prefill = tile_rows * (padded * OperandBytes(problem) + 16) +
                          int64_t{4} * tile_keys * (padded * element + 16);
  const int64_t decode = LeastDecodeBytes(problem);
  if (Parts(problem) == 1) return prefill < decode ? 0 : prefill;
  return std::max(prefill, decode) + int64_t{std::max(tile_keys / 8, 4)} * 16 * kAttendThreads;
}

int64_t SimtSharedBytes(const Problem& problem) {
  const int64_t keys = problem.head_dim > 256 ? 8 : 32;
  return (kDecodeTileRows + 2 * keys) * (RoundUp(problem.head_dim, 4) + 4) * 4;
}

int64_t PanelDims(const Problem& problem) {
  return 2 * int64_t{sm90::kPanelDims} / DTypeSize(problem.cache_dtype);
}

// Whether a head's dimensions do not fill panels, so that a box is of one panel.
bool IsPadded(const Problem& problem) { return problem.head_dim % PanelDims(problem) != 0; }

// Larger boxes load no faster, and bring more of what lies past the end of a sequence.
int BoxTokens(const Problem& problem) { return problem.page_size % 16 == 0 ? 16 : 8; }

// What the launch of prefill that does the arithmetic makes keys and values of.
sm90::Source SourceOf(const Problem& problem) {
  return IsFloat8(problem.cache_dtype)        ? sm90::Source::kBytes
         : problem.query_dtype == DType::kF32 ? sm90::Source::kTerms
                                              : sm90::Source::kElements;
}

template <int kHeadDim>
using PlainPrefill = sm90::PrefillShared<kHeadDim, sm90::Source::kElements>;
template <sm90::Source kSource>
int64_t PanelsSharedBytes(const Problem& problem) {  // of heads that fill one or two
  return problem.head_dim > sm90::kPanelDims ? sizeof(sm90::PrefillShared<128, kSource>)
                                             : sizeof(sm90::PrefillShared<64, kSource>);
}
int64_t PrefillSharedBytes(const Problem& problem) {
  const sm90::Source source = SourceOf(problem);
  if (source == sm90::Source::kBytes) return PanelsSharedBytes<sm90::Source::kBytes>(problem);
  if (source == sm90::Source::kTerms) return PanelsSharedBytes<sm90::Source::kTerms>(problem);
  const int dims = sm90::PrefillDims(static_cast<int>(problem.head_dim));
  return dims == 192 ? sizeof(PlainPrefill<192>) : SharedBytes<PlainPrefill>(dims);
}

// The widest tiles with which as many blocks as registers allow fit an SM.
bool FitTensorCore(const Problem& problem, const cuda::DeviceInfo& device, Config& config) {
  config.family = Family::kTensorCore;
  config.tile_rows = WidestTile(problem);
  const int64_t per_sm = device.max_shared_memory_per_block + 1024;
  for (const int blocks : {2, 1}) {
    const int step = FragmentKeys(problem);
    for (int keys = 64; keys >= (Parts(problem) == 1 ? 2 * step : step); keys -= step) {
      const int64_t bytes = TensorCoreSharedBytes(problem, config.tile_rows, keys);
      if (bytes == 0 || blocks * (bytes + kReservedSharedBytes) > per_sm) continue;
      config.tile_keys = keys;
      config.blocks_per_sm = blocks;
      config.shared_bytes = static_cast<int>(bytes);
      return true;
    }
  }
  return false;
}

// The short form of tanh has an absolute error of 2^-23, which a large cap would multiply.
bool ExactTanh(const Problem& problem, const Config& config) {
  return config.family == Family::kSimt || problem.query_dtype == DType::kF32 ||
         problem.soft_cap > 256;
}

std::vector<std::string> TypeDefines(const Problem& problem, const Config& config) {
  return {
      StrCat("QUERY_TYPE=", InfoOf(problem.query_dtype).device),
      StrCat("CACHE_TYPE=", InfoOf(problem.cache_dtype).device),
      StrCat("OUT_TYPE=", InfoOf(problem.out_dtype).device),
      StrCat("HEAD_DIM=", problem.head_dim),
      StrCat("SOFT_CAP=", problem.soft_cap == 0        ? 0
                          : ExactTanh(problem, config) ? 2
                                                       : 1),
  };
}

std::vector<std::string> AttendDefines(const Problem& problem, const Config& config) {
  std::vector<std::string> defines = TypeDefines(problem, config);
  if (config.family == Family::kTensorCore) {
    defines.push_back(StrCat("TILE_ROWS=", config.tile_rows));
    defines.push_back(StrCat("TILE_KEYS=", config.tile_keys));
    defines.push_back(StrCat("MIN_BLOCKS=", config.blocks_per_sm));
    defines.push_back(StrCat("BEHIND_PREFILL=", config.prefill_sm90 ? 1 : 0));
  }
  if (!config.aligned) defines.push_back("UNALIGNED");
  if (problem.has_token_scales()) defines.push_back("TOKEN_SCALES");
  return defines;
}

// Tokens of the copy that prefill reads by boxes, or 0.
int64_t CopiedTokens(const Problem& problem, const cuda::DeviceInfo& device) {
  const int64_t tokens = CopyTokens(problem);
  return tokens > 0 && BoxesFit(CopyOf(problem, tokens), device) ? tokens : 0;
}

// Why prefill items have no launch of their own, where the line does not take everything.
const char* WhyNotPrefill(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!HasPrefill(problem)) return "room for hardly more than decode";
  // Others are padded to whole panels; what is converted fills them.
  const int64_t dim = problem.head_dim;
  const bool known = SourceOf(problem) != sm90::Source::kElements
                         ? dim == 64 || dim == 128
                         : (dim % 8 == 0 && dim <= 256) || dim == 512;
  const char* why = WhyNotSm90(problem, device, known, PrefillSharedBytes(problem) + kStaticShared);
  if (why != nullptr || !IsSplit(problem)) return why;
  return CopiedTokens(problem, device) > 0 ? nullptr : "no copy of f32";
}

// Two blocks read keys and values once for both where that has paid: where the copy engine does it,
// query heads share a kv head, and sequences have the rows for several pairs.
int PrefillBlocks(const Problem& problem, bool boxes) {
  const int64_t rows =
      problem.tokens * problem.group_size() / std::max(problem.max_seqs, int64_t{1});
  const bool pays = problem.head_dim > 64 && problem.head_dim <= 128 && problem.group_size() > 1;
  const int64_t pairs = rows / sm90::PrefillRows(problem.head_dim) / 2;
  return boxes && pays && pairs >= 4 ? 2 : 1;
}

// ceil(2^(31 + b) / d) with 2^(b - 1) < d <= 2^b fits 32 bits and divides 31-bit numbers exactly.
Divisor DivisorOf(int64_t d) {
  int bits = 0;
  while ((int64_t{1} << bits) < d) ++bits;
  if (bits == 0) return {};
  return {static_cast<unsigned>(CeilDiv(int64_t{1} << (31 + bits), d)), bits - 1};
}

// Which of the launches that may stand in a call do.
struct Choice {
  bool prefill = true;
  bool decode = true;
  int cluster = 0;  // in place of the others, where decode could be
  bool aligned = true;
};

Config MakeConfig(const Problem& problem, const cuda::DeviceInfo& device, const Choice& choice) {
  constexpr const char* kNotChosen = "not chosen";
  Config config{.aligned = choice.aligned};
  config.decode_max_rows = problem.batch_invariant ? kDecodeTileRows : 2 * kDecodeTileRows;
  if (!choice.aligned || !TensorCoresTake(problem) || !FitTensorCore(problem, device, config)) {
    config.family = Family::kSimt;
    config.tile_rows = kDecodeTileRows;
    config.tile_keys = 0;
    config.shared_bytes = static_cast<int>(SimtSharedBytes(problem));
    const int64_t per_sm = device.max_shared_memory_per_block + 1024;
    config.blocks_per_sm = static_cast<int>(
        std::clamp<int64_t>(per_sm / (config.shared_bytes + kReservedSharedBytes), 1,
                            problem.head_dim > 256 ? 2 : 4));  // as registers allow
  }
  config.workers = config.prefill_workers = static_cast<int>(
      std::min(int64_t{config.blocks_per_sm} * device.num_sms, MostWorkers(problem)));
  constexpr const char* kUnaligned = "unaligned tensors";
  config.why_not_line = !choice.aligned ? kUnaligned
                        : choice.decode ? WhyNotLine(problem, device)
                                        : kNotChosen;
  if (config.why_not_line == nullptr) {
    config.decode_ranges = DecodeRanges(problem, device.num_sms);
    config.decode_sm90 = true;
    config.line_only = IsDecode(problem);
  }
  const bool boxes = BoxesFit(problem, device);
  config.why_not_prefill = !choice.aligned    ? kUnaligned
                           : config.line_only ? "decode takes all"
                           : !choice.prefill  ? kNotChosen
                                              : WhyNotPrefill(problem, device);
  if (config.why_not_prefill == nullptr) {
    config.prefill_sm90 = true;
    config.copy_tokens = CopiedTokens(problem, device);
    if (config.copy_tokens > 0) {
      config.copied_blocks = PrefillBlocks(problem, true);
      config.copied_workers = device.num_sms / config.copied_blocks;
    }
    if (!IsSplit(problem)) {  // else all that has no copy is left to attend
      // Tiles of fp8 are converted on their way, which the copy engine cannot do.
      config.boxes = !IsFloat8(problem.cache_dtype) && boxes;
      config.prefill_blocks = PrefillBlocks(problem, config.boxes);
      config.prefill_workers = device.num_sms / config.prefill_blocks;
      config.decode_max_rows = kDecodeTileRows;
    }
  }
  if (config.decode_sm90) {
    config.boxes = boxes;
    config.decode_max_rows = config.line_only ? static_cast<int>(kMaxInt) : LineRows(problem);
    if (config.line_only) config.decode_cluster = choice.cluster;
    config.decode_workers = config.decode_cluster > 1
                                ? config.decode_cluster * static_cast<int>(problem.kv_heads)
                            : config.decode_cluster == 1 ? TokenBlocks(problem, device)
                                                         : device.num_sms;
  }
  config.overlaps = device.Arch() == "sm_90a" && config.decode_cluster == 0;
  // A thread a sequence, and a prefill item; fewer threads have shorter barriers.
  const int64_t items = config.prefill_sm90 ? CeilDiv(problem.tokens * problem.group_size(),
                                                      sm90::PrefillRows(problem.head_dim))
                                            : 0;
  const int64_t wanted = std::max(std::min(problem.max_seqs, kMostScheduleThreads),
                                  std::min(items, kMostScheduleThreads / 2));
  config.schedule_threads = kLeastScheduleThreads;
  while (config.schedule_threads < wanted) config.schedule_threads *= 2;
  return config;
}

}  // namespace

bool ReadsPairs(const Problem& problem) {
  const int64_t bytes = problem.head_dim * DTypeSize(problem.cache_dtype);
  return !problem.separate_v && problem.v.offset - problem.k.offset == problem.head_dim &&
         bytes <= int64_t{sm90::kBoxPanels} * 128 && cuda::IsAccepted(MakeBoxes(problem, true));
}

const char* WhyNotSm90(const Problem& problem, const cuda::DeviceInfo& device, bool takes_head_dim,
                       int64_t shared_bytes) {
  if (device.Arch() != "sm_90a") return "not on Hopper";
  if (!TensorCoresTake(problem)) return "dtypes";
  if (problem.has_token_scales()) return "scales of tokens";
  if (!takes_head_dim) return "head_dim";
  return shared_bytes <= device.max_shared_memory_per_block ? nullptr : "shared memory";
}

bool BoxesFit(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!device.tensor_maps) return false;
  const CacheLayout& k = problem.k;
  const int64_t panel = PanelDims(problem);
  for (const int64_t stride : {k.page_stride, k.token_stride, k.head_stride}) {
    if (stride < 0) return false;
  }
  const bool whole = problem.page_size % 8 == 0 &&
                     (IsPadded(problem) || k.head_stride % panel == 0) &&
                     k.offset % (panel / 8) == 0 && problem.v.offset % (panel / 8) == 0;
  return whole && problem.num_pages <= kMaxInt && cuda::IsAccepted(MakeBoxes(problem));
}

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
  return MakeConfig(problem, device,
                    {.cluster = DecodeCluster(problem, device), .aligned = aligned});
}

StatusOr<std::vector<Config>> Alternatives(const Problem& problem, const cuda::DeviceInfo& device) {
  XLA_GPU_ASSIGN_OR_RETURN(const Config model, ChooseConfig(problem, device));
  std::vector<Config> alternatives = {model};
  if (problem.batch_invariant) return alternatives;
  std::vector<Choice> choices;
  for (const int cluster : ClusterSizes(problem, device)) choices.push_back({.cluster = cluster});
  for (const bool decode : {true, false}) {
    for (const bool prefill : {true, false}) choices.push_back({prefill, decode});
  }
  for (const Choice& choice : choices) {
    const Config config = MakeConfig(problem, device, choice);
    const bool known =
        std::ranges::find(alternatives, NameOf(config), NameOf) != alternatives.end();
    if (!known) alternatives.push_back(config);
  }
  return alternatives;
}

std::string NameOf(const Config& config) {
  if (config.decode_cluster > 0) return StrCat("cluster", config.decode_cluster);
  if (config.line_only) return "decode";
  return StrCat(config.prefill_sm90 ? "prefill+" : "", "attend",
                config.decode_sm90 ? "+decode" : "");
}

Launches MakeLaunches(const Problem& problem, const Config& config) {
  const std::string folder = "src/ops/paged_attention/cuda/";
  const auto blocks = [](int count) { return static_cast<uint32_t>(count); };
  Launches launches;
  launches.schedule = {{folder + "schedule.cu",
                        "paged_attention_schedule",
                        {StrCat("SCHEDULE_THREADS=", config.schedule_threads),
                         StrCat("LINE_ONLY=", config.line_only ? 1 : 0)}},
                       {.block = {blocks(config.schedule_threads), 1, 1},
                        .programmatic = config.overlaps && config.prefill_sm90}};
  const auto add_sm90 = [&](const Problem& of, const char* source, const char* entry, int grid,
                            uint32_t block, int64_t shared_bytes,
                            const std::vector<std::string>& own) {
    std::vector<std::string> defines = TypeDefines(of, config);
    defines.push_back(StrCat("TILE_ROWS=", sm90::PrefillRows(problem.head_dim)));
    defines.insert(defines.end(), own.begin(), own.end());
    launches.attend.push_back({{folder + source, entry, std::move(defines)},
                               {.grid = {blocks(grid), 1, 1},
                                .block = {block, 1, 1},
                                .dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes)}});
  };
  const bool pairs = config.boxes && ReadsPairs(problem);
  if (config.decode_cluster > 0) {
    const bool whole = config.decode_cluster == 1;
    add_sm90(problem, whole ? "decode_tokens_sm90.cu" : "decode_cluster_sm90.cu",
             whole ? "paged_attention_decode_tokens" : "paged_attention_decode_cluster",
             config.decode_workers,
             whole ? sm90::kTokenThreads : sm90::DecodeThreads(ClusterRows(problem), config.boxes),
             ClusterSharedBytes(problem, config.decode_cluster),
             {StrCat("TILE_KEYS=", sm90::PrefillKeys(problem.head_dim)),
              StrCat("CLUSTER=", config.decode_cluster), StrCat("LINE_ROWS=", ClusterRows(problem)),
              StrCat("BOXES=", config.boxes ? 1 : 0), StrCat("PAIRS=", pairs ? 1 : 0)});
    launches.attend.back().pairs = pairs;
    return launches;
  }
  if (config.decode_sm90) {
    add_sm90(problem, "decode_sm90.cu", "paged_attention_decode", config.decode_workers,
             sm90::DecodeThreads(LineRows(problem), config.boxes),
             DecodeSharedBytes(problem, config.boxes),
             {StrCat("TILE_KEYS=", sm90::PrefillKeys(problem.head_dim)),
              StrCat("LINE_ROWS=", LineRows(problem)), StrCat("BOXES=", config.boxes ? 1 : 0),
              StrCat("PAIRS=", pairs ? 1 : 0)});
    launches.attend.back().pairs = pairs;
  }
  const auto add_prefill = [&](const Problem& of, int workers, bool boxes, int cluster,
                               bool copied) {
    add_sm90(
        of, "prefill_sm90.cu", "paged_attention_prefill", workers * cluster,
        static_cast<uint32_t>(sm90::PrefillThreads(of.head_dim, IsFloat8(of.cache_dtype))),
        PrefillSharedBytes(of),
        {StrCat("TILE_KEYS=", sm90::PrefillKeys(of.head_dim, SourceOf(of))),
         StrCat("BOXES=", boxes ? 1 : 0), StrCat("CLUSTER=", cluster),
         StrCat("BESIDE_DECODE=", config.decode_sm90 ? 1 : 0), StrCat("COPIED=", copied ? 1 : 0)});
  };
  if (config.prefill_sm90 && IsSplit(problem)) {
    launches.attend.push_back(
        {{folder + "copy_terms.cu",
          "paged_attention_copy_terms",
          {StrCat("HEAD_DIM=", problem.head_dim), "SOFT_CAP=0"}},
         {.grid = {blocks(config.copied_workers * config.copied_blocks), 1, 1},
          .block = {kCopyThreads, 1, 1}}});
  } else if (config.prefill_sm90) {
    add_prefill(problem, config.prefill_workers, config.boxes, config.prefill_blocks, false);
  }
  if (config.copy_tokens > 0) {
    add_prefill(CopyOf(problem, config.copy_tokens), config.copied_workers, true,
                config.copied_blocks, true);
  }
  if (!config.line_only) {
    const bool mma = config.family == Family::kTensorCore;
    launches.attend.push_back(
        {{folder + (mma ? "attend_mma.cu" : "attend_simt.cu"), "paged_attention_attend",
          AttendDefines(problem, config)},
         {.grid = {blocks(config.workers), 1, 1},
          .block = {kAttendThreads, 1, 1},
          .dynamic_shared_bytes = static_cast<uint32_t>(config.shared_bytes)}});
  }
  for (KernelLaunch& launch : launches.attend) launch.config.programmatic = config.overlaps;
  return launches;
}

cuda::TensorMapSpec MakeBoxes(const Problem& problem, bool pairs) {
  const int64_t panel = PanelDims(problem);
  const uint64_t element = DTypeSize(problem.cache_dtype);
  const uint64_t token_bytes = problem.k.token_stride * element;
  const uint64_t panels = (pairs ? 2 : 1) * problem.head_dim / panel;
  const uint64_t of_box = pairs ? panels : std::min<uint64_t>(panels, sm90::kBoxPanels);
  const uint64_t groups = problem.page_size / 8;
  constexpr int kWords = sm90::kPanelDims;  // of 16 bits
  if (IsPadded(problem)) {
    return {{static_cast<uint64_t>(problem.head_dim), 8, groups,
             static_cast<uint64_t>(problem.num_pages), static_cast<uint64_t>(problem.kv_heads)},
            {token_bytes, 8 * token_bytes, problem.k.page_stride * element,
             problem.k.head_stride * element},
            {kWords, 8, static_cast<uint32_t>(BoxTokens(problem) / 8), 1, 1}};
  }
  return {
      {kWords, 8, (problem.kv_heads - 1) * problem.k.head_stride / panel + panels, groups,
       static_cast<uint64_t>(problem.num_pages)},
      {token_bytes, panel * element, 8 * token_bytes, problem.k.page_stride * element},
      {kWords, 8, static_cast<uint32_t>(of_box), static_cast<uint32_t>(BoxTokens(problem) / 8), 1}};
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
  // Positions are 32-bit; the margin keeps the ends of the last tiles from overflowing.
  p.max_context = static_cast<int>(std::min(problem.max_context(), kMaxInt - 4096));
  // A larger one hides nothing more, and would overflow with positions before the first key.
  p.window = static_cast<int>(std::min(problem.sliding_window, int64_t{p.max_context}));
  p.workers = config.workers;
  p.prefill_workers = config.prefill_workers;
  p.prefill_launch = config.prefill_sm90 ? 1 : 0;
  p.copied_only = config.prefill_sm90 && IsSplit(problem) ? 1 : 0;
  p.workers_per_sm = config.blocks_per_sm;
  p.prefill_tile_rows = config.prefill_sm90 && p.copied_only == 0
                            ? config.prefill_blocks * sm90::PrefillRows(problem.head_dim)
                            : config.tile_rows;
  // Of decode's blocks a thread looks at a sequence, of prefill's a lane.
  const int64_t most_seqs = config.decode_sm90
                                ? sm90::DecodeThreads(LineRows(problem), config.boxes)
                            : config.prefill_sm90 && IsNarrow(problem.cache_dtype) ? 32
                                                                                   : 0;
  p.own_work = problem.max_seqs <= most_seqs ? 1 : 0;
  p.copy_capacity = static_cast<int>(config.copy_tokens);
  p.least_copy_rows = LeastCopyRows(problem);
  p.copied_workers = config.copied_workers;
  p.copied_tile_rows = config.copied_blocks * sm90::PrefillRows(problem.head_dim);
  p.decode_max_rows = config.decode_max_rows;
  p.decode_ranges = config.decode_ranges;
  p.line_rows = LineRows(problem);
  // More where warps take long to end a tile, or blocks of keys take less time since fewer
  // multiprocessors share the bandwidth.
  p.tile_blocks = config.decode_cluster > 1 ? 2
                  : config.line_only && sm90::IsWide(static_cast<int>(p.line_rows))
                      ? kMostTileBlocks
                      : 1;
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
