#include "src/ops/paged_attention/cuda/config.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int kSimtLanes = kAttendThreads / kDecodeTileRows;  // of a row
constexpr int kLeastScheduleThreads = 128;
constexpr int64_t kMostScheduleThreads = 1024;
// What the runtime reserves of an SM's shared memory for each block, and our kernels' static part.
constexpr int64_t kReservedSharedBytes = 1024 + 2560;
// Room for this many split items at least; more would not fill a device better.
constexpr int64_t kPartialItems = 2048;
// And for this many split prefill tiles: as many as a large device runs at once.
constexpr int64_t kPartialPrefillTiles = 384;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

bool IsNarrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool TensorCoresTake(const Problem& problem) {
  return problem.cache_dtype == problem.query_dtype ||
         (IsNarrow(problem.query_dtype) && IsFloat8(problem.cache_dtype));
}

// As mma_tile.cuh computes kSplit, kParts, kOwnDims, kFragmentKeys and two stages of decode.
bool IsSplit(const Problem& problem) { return problem.cache_dtype == DType::kF32; }
int64_t OperandBytes(const Problem& problem) { return IsSplit(problem) ? 4 : 2; }
int64_t Parts(const Problem& problem) {
  const int64_t row = problem.head_dim * OperandBytes(problem);
  return row > 1024 ? 4 : row > 512 ? 2 : 1;
}
int64_t OwnDims(const Problem& problem) {
  const int64_t align = IsNarrow(problem.cache_dtype) ? 16 : 32;
  return RoundUp(problem.head_dim, align * Parts(problem)) / Parts(problem);
}
int FragmentKeys(const Problem& problem) { return IsSplit(problem) ? 8 : 16; }
int64_t LeastDecodeBytes(const Problem& problem) {
  const int64_t row = OwnDims(problem) * DTypeSize(problem.cache_dtype) + 16;
  return int64_t{2} * kAttendWarps * 2 * FragmentKeys(problem) * row;
}

// Rows of a tensor-core tile. The sums of the rows' values stay in registers, 128 of them a thread,
// of f32, which needs more for its operands, 64.
int WidestTile(const Problem& problem) {
  const int64_t row = problem.head_dim * OperandBytes(problem);
  return row <= 256 ? 128 : row <= 512 ? 64 : row <= 1024 ? 32 : 16;
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

// Blocks of the attend launch at most: more than the largest devices hold.
int64_t MostWorkers(const Problem& problem) { return TensorCoresTake(problem) ? 320 : 640; }

// As softmax.cuh and attend_simt.cu compute kCarryFloats.
int64_t CarryFloats(const Problem& problem) {
  const int64_t tiles = Parts(problem) * WidestTile(problem) / 64;
  return TensorCoresTake(problem) ? tiles * (6 + OwnDims(problem))
                                  : 3 + 8 * CeilDiv(problem.head_dim, int64_t{4} * kSimtLanes);
}

int64_t CarryBytes(const Problem& problem) {
  // Of wide heads attend_simt.cu may be what a device runs.
  const bool few = IsNarrow(problem.query_dtype) && TensorCoresTake(problem);
  const int64_t most_keys = few && problem.head_dim <= 128 ? kCarryKeys : kF32CarryKeys;
  if (problem.max_context() <= most_keys) return 0;
  return MostWorkers(problem) * kAttendThreads * CarryFloats(problem) * int64_t{sizeof(float)};
}

int64_t SimtSharedBytes(const Problem& problem) {
  const int64_t keys = problem.head_dim > 256 ? 8 : 32;
  return (kDecodeTileRows + 2 * keys) * (RoundUp(problem.head_dim, 4) + 4) * 4;
}

// Whether a prefill launch could pay, whatever the device: a batch with as many sequences as the
// problem has room for would decode more than two tokens of each; or so many more than one of each
// that an empty launch hardly shows beside them.
bool HasPrefill(const Problem& problem) {
  constexpr int64_t kFewTokens = 32;
  return problem.tokens - problem.max_seqs > std::min(problem.max_seqs, kFewTokens);
}

int64_t PanelDims(const Problem& problem) {
  return 2 * int64_t{sm90::kPanelDims} / DTypeSize(problem.cache_dtype);
}

// Whether a head's dimensions do not fill panels, so that a box is of one panel.
bool IsPadded(const Problem& problem) { return problem.head_dim % PanelDims(problem) != 0; }

// Larger boxes load no faster, and bring more of what lies past the end of a sequence.
int BoxTokens(const Problem& problem) { return problem.page_size % 16 == 0 ? 16 : 8; }

template <template <int> typename Shared>
int64_t SharedBytes(int64_t head_dim) {
  return head_dim == 512   ? sizeof(Shared<512>)
         : head_dim == 256 ? sizeof(Shared<256>)
         : head_dim == 128 ? sizeof(Shared<128>)
                           : sizeof(Shared<64>);
}

template <int kHeadDim>
using PlainPrefill = sm90::PrefillShared<kHeadDim, false>;
template <int kHeadDim>
using ConvertingPrefill = sm90::PrefillShared<kHeadDim, true>;
int64_t PrefillSharedBytes(const Problem& problem) {
  if (IsFloat8(problem.cache_dtype)) return SharedBytes<ConvertingPrefill>(problem.head_dim);
  const int dims = sm90::PrefillDims(static_cast<int>(problem.head_dim));
  return dims == 192 ? sizeof(PlainPrefill<192>) : SharedBytes<PlainPrefill>(dims);
}

// Why the kernels for Hopper do not take the problem's types, or such a head_dim; null where they
// do.
const char* WhyNotSm90(const Problem& problem, const cuda::DeviceInfo& device, bool takes_head_dim,
                       int64_t shared_bytes) {
  if (device.Arch() != "sm_90a") return "not on Hopper";
  if (!TensorCoresTake(problem) || IsSplit(problem)) return "dtypes";
  if (!takes_head_dim) return "head_dim";
  // The static part of its shared memory, rounded up to the alignment of the rest, comes on top.
  return shared_bytes + 1024 <= device.max_shared_memory_per_block ? nullptr : "shared memory";
}

// Whether the copy engine can load the problem's pages by boxes: a head's elements lie in whole
// panels, and pages of whole groups.
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

// Whether the decode kernels do well whatever the batch is: there is at most a token of each
// sequence that there is room for, or so few that no sequence has many rows.
bool IsDecode(const Problem& problem) {
  const int64_t most_rows = IsFloat8(problem.cache_dtype) || problem.head_dim > 128 ? 32 : 128;
  const int64_t few_rows = std::min(most_rows, int64_t{2} * kDecodeTileRows * problem.max_seqs);
  return problem.tokens > 0 && problem.max_seqs > 0 &&
         (problem.tokens <= problem.max_seqs || problem.tokens * problem.group_size() <= few_rows);
}

// Rows of a tile of the line of decode work.
int LineRows(const Problem& problem) {
  const bool few = problem.tokens <= problem.max_seqs && problem.group_size() <= 8;
  if (problem.head_dim > 128) return few ? kDecodeTileRows / 2 : kDecodeTileRows;
  return few || IsFloat8(problem.cache_dtype) ? kDecodeTileRows : 2 * kDecodeTileRows;
}

// Whether they are worth a launch of their own, behind those that take longer sequences: where the
// rows of most fit a tile.
bool IsMixed(const Problem& problem) {
  return problem.tokens > 0 && !IsDecode(problem) && !IsFloat8(problem.cache_dtype) &&
         CeilDiv(problem.tokens * problem.group_size(), int64_t{LineRows(problem)}) <=
             problem.max_seqs;
}

template <int kElement, int kRows>
struct Decode {
  template <int kHeadDim>
  using Shared = sm90::DecodeShared<kHeadDim, kElement, kRows>;
  template <int kHeadDim>
  using Cluster = sm90::ClusterShared<kHeadDim, kElement, kRows>;
};
int64_t DecodeSharedBytes(const Problem& problem) {
  if (IsFloat8(problem.cache_dtype)) {
    return LineRows(problem) == 8 ? SharedBytes<Decode<1, 8>::Shared>(problem.head_dim)
                                  : SharedBytes<Decode<1, 16>::Shared>(problem.head_dim);
  }
  if (LineRows(problem) == 8) return SharedBytes<Decode<2, 8>::Shared>(problem.head_dim);
  return LineRows(problem) == 16 ? SharedBytes<Decode<2, 16>::Shared>(problem.head_dim)
                                 : SharedBytes<Decode<2, 32>::Shared>(problem.head_dim);
}

// As WhyNotSm90, of the decode kernels: a row of keys fills whole panels.
const char* WhyNotSm90Decode(const Problem& problem, const cuda::DeviceInfo& device,
                             int64_t shared_bytes) {
  const int64_t dim = problem.head_dim;
  const bool known = dim == 64 || dim == 128 || dim == 256 || dim == 512;
  const char* why = WhyNotSm90(problem, device, known, shared_bytes);
  if (why != nullptr) return why;
  const bool whole = !IsFloat8(problem.cache_dtype) || problem.head_dim >= 128;
  return whole ? nullptr : "head_dim of an fp8 cache";
}

// Rows of a tile where clusters share heads: half as many if those of a token fit.
int ClusterRows(const Problem& problem) {
  const bool few = problem.tokens <= problem.max_seqs && problem.group_size() <= 8;
  return few ? kDecodeTileRows / 2 : kDecodeTileRows;
}
int64_t ClusterSharedBytes(const Problem& problem) {
  const bool narrow = ClusterRows(problem) < kDecodeTileRows;
  if (IsFloat8(problem.cache_dtype)) {
    return narrow ? SharedBytes<Decode<1, 8>::Cluster>(problem.head_dim)
                  : SharedBytes<Decode<1, 16>::Cluster>(problem.head_dim);
  }
  return narrow ? SharedBytes<Decode<2, 8>::Cluster>(problem.head_dim)
                : SharedBytes<Decode<2, 16>::Cluster>(problem.head_dim);
}

// The blocks that share a kv head in decode_cluster_sm90.cuh, or 0 where decode_sm90.cuh takes the
// problem: it begins later, but reads with all multiprocessors.
int DecodeCluster(const Problem& problem, const cuda::DeviceInfo& device) {
  if (problem.tokens > 8 || problem.max_seqs > sm90::kClusterSeqs) return 0;
  // Of wide heads there is no room for more rows.
  if (problem.head_dim > 128 && ClusterRows(problem) == kDecodeTileRows) return 0;
  if (WhyNotSm90Decode(problem, device, ClusterSharedBytes(problem)) != nullptr) return 0;
  // So many that all run at once: clusters do not reach every multiprocessor. One of 16 blocks has
  // a GPC to itself, and some GPCs lack multiprocessors: of 132 in GPCs of at most 18 five have 16.
  int64_t blocks = device.num_sms >= 132 && problem.kv_heads <= 4 ? 16 : 8;
  while (blocks * problem.kv_heads > device.num_sms * 3 / 4) blocks /= 2;
  if (blocks < 2) return 0;
  // Half of the multiprocessors read nearly as fast as all of them; of fp8 they compute half as
  // fast.
  const int64_t fast_keys = IsFloat8(problem.cache_dtype) ? 16384 : 131072;
  const int64_t wider = std::max<int64_t>(problem.head_dim / 128, 1);
  const int64_t most_keys = (blocks * problem.kv_heads >= 64 ? fast_keys : 1024 * blocks) / wider;
  return problem.max_context() <= most_keys / problem.tokens ? static_cast<int>(blocks) : 0;
}

// Rows of partial results of a part of a decode tile, as PartRows of line.cuh; and the most blocks
// of the line of decode work, where it is.
int64_t PartRows(const Problem& problem) {
  return std::min<int64_t>(LineRows(problem), problem.tokens * problem.group_size());
}
int64_t MostLineBlocks(const Problem& problem) {
  const int64_t tiles = problem.tokens * CeilDiv(problem.group_size(), LineRows(problem));
  const int64_t blocks = CeilDiv(std::min(problem.max_context(), kMaxInt), kSplitTokens) + 2;
  return tiles > kMaxInt / blocks ? kMaxInt : tiles * blocks;
}

// As many ranges as, times the heads, keep the multiprocessors equally busy; 0 if there is no room
// for their partial results.
int DecodeRanges(const Problem& problem, int num_sms) {
  const int64_t heads = problem.kv_heads;
  const WorkspaceLayout layout = MakeWorkspaceLayout(problem);
  const int64_t most =
      (layout.partial_capacity - layout.line_partials) / (2 * heads * PartRows(problem));
  int64_t best = std::min<int64_t>(most, 1);
  double best_share = 0;
  for (int64_t ranges = 1; ranges <= most && ranges * heads <= int64_t{4} * num_sms; ++ranges) {
    const int64_t units = ranges * heads;
    const double share = static_cast<double>(units) / static_cast<double>(RoundUp(units, num_sms));
    if (share <= best_share + (units > num_sms ? 0.04 : 0)) continue;
    best = ranges;
    best_share = share;
  }
  return static_cast<int>(best);
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
  return config.family == Family::kSimt || IsSplit(problem) || problem.soft_cap > 256;
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
  return defines;
}

// Why the line of decode work has no launch of its own; null where it has.
const char* WhyNotLine(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!IsDecode(problem) && !IsMixed(problem)) return "room for many tokens a sequence";
  // Where its ranges cut a sequence depends on the lengths of all.
  if (problem.batch_invariant) return "batch_invariant";
  if (MostLineBlocks(problem) > kMaxInt / 2) return "too many keys";
  const char* why = WhyNotSm90Decode(problem, device, DecodeSharedBytes(problem));
  if (why != nullptr) return why;
  if (!BoxesFit(problem, device)) return "pages that do not fit boxes";
  return DecodeRanges(problem, device.num_sms) > 0 ? nullptr : "no room for partial results";
}

// The same of prefill items, where the line does not take everything.
const char* WhyNotPrefill(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!HasPrefill(problem)) return "room for hardly more than decode";
  // Others are padded to whole panels; what is converted fills them.
  const int64_t dim = problem.head_dim;
  const bool known = IsFloat8(problem.cache_dtype) ? dim == 64 || dim == 128
                                                   : (dim % 8 == 0 && dim <= 256) || dim == 512;
  return WhyNotSm90(problem, device, known, PrefillSharedBytes(problem));
}

// ceil(2^(31 + b) / d) with 2^(b - 1) < d <= 2^b fits 32 bits and divides 31-bit numbers exactly.
Divisor DivisorOf(int64_t d) {
  int bits = 0;
  while ((int64_t{1} << bits) < d) ++bits;
  if (bits == 0) return {};
  return {static_cast<unsigned>(CeilDiv(int64_t{1} << (31 + bits), d)), bits - 1};
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
  Config config{.aligned = aligned};
  config.decode_max_rows = problem.batch_invariant ? kDecodeTileRows : 2 * kDecodeTileRows;
  if (!aligned || !TensorCoresTake(problem) || !FitTensorCore(problem, device, config)) {
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
  config.why_not_line = aligned ? WhyNotLine(problem, device) : "unaligned tensors";
  if (config.why_not_line == nullptr) {
    config.decode_ranges = DecodeRanges(problem, device.num_sms);
    config.decode_sm90 = true;
    config.line_only = IsDecode(problem);
  }
  config.why_not_prefill = !aligned           ? "unaligned tensors"
                           : config.line_only ? "decode takes all"
                                              : WhyNotPrefill(problem, device);
  if (config.why_not_prefill == nullptr) {
    config.prefill_sm90 = true;
    // Tiles of fp8 are converted on their way, which the copy engine cannot do.
    config.boxes = !IsFloat8(problem.cache_dtype) && BoxesFit(problem, device);
    config.prefill_workers = device.num_sms;
    config.decode_max_rows = kDecodeTileRows;
  }
  if (config.decode_sm90) {
    config.boxes = true;
    config.decode_max_rows = config.line_only ? static_cast<int>(kMaxInt) : LineRows(problem);
    if (config.line_only) config.decode_cluster = DecodeCluster(problem, device);
    config.decode_workers = config.decode_cluster > 0
                                ? config.decode_cluster * static_cast<int>(problem.kv_heads)
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

WorkspaceLayout MakeWorkspaceLayout(const Problem& problem) {
  const int64_t active = std::min(problem.max_seqs, problem.tokens);
  const int64_t group = problem.group_size();
  WorkspaceLayout layout;
  int64_t line_capacity = 0;
  if (problem.batch_invariant) {
    const int64_t splits = std::min<int64_t>(kInvariantMaxSplits,
                                             CeilDiv(problem.max_context(), kInvariantSplitTokens));
    const int64_t rows =
        std::min(problem.tokens * problem.q_heads, active * kDecodeTileRows * problem.kv_heads);
    layout.partial_capacity = splits > 1 ? rows * splits : 0;
  } else {
    const int64_t useful = std::max(kPartialItems * std::clamp<int64_t>(group, 4, kDecodeTileRows),
                                    kPartialPrefillTiles * WidestTile(problem));
    const int64_t splits = CeilDiv(problem.max_context(), int64_t{2} * kSplitTokens) + 1;
    // Compared by division: the product may be large.
    layout.partial_capacity = problem.tokens * problem.q_heads > useful / splits
                                  ? useful
                                  : problem.tokens * problem.q_heads * splits;
    line_capacity =
        std::min(useful, problem.kv_heads * PartRows(problem) * MostLineBlocks(problem));
    if (IsDecode(problem)) {
      // For each range of the line the parts of two tiles.
      layout.partial_capacity = std::max(layout.partial_capacity, line_capacity);
    }
  }
  // Every tile of 16 rows may be an item, begun by any sequence, and in a contested batch by any
  // token; a split item has at least one row of partial results for each kv head. Fill items come
  // on top.
  const int64_t items = problem.tokens * CeilDiv(group, kDecodeTileRows) + active +
                        layout.partial_capacity / std::max<int64_t>(problem.kv_heads, 1) +
                        CeilDiv(problem.tokens, kFillTokens);
  int64_t end = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = end;
    end = RoundUp(end + bytes, 256);
    return begin;
  };
  if (IsMixed(problem) && !problem.batch_invariant) {
    layout.line_partials = layout.partial_capacity;
    layout.partial_capacity += line_capacity;
  }
  layout.header = take(sizeof(WorkHeader));
  layout.sequences = take(problem.max_seqs * static_cast<int64_t>(sizeof(SequenceInfo)));
  layout.owner_end = take(problem.max_seqs * 4);
  layout.state = take(problem.max_seqs * 4);
  layout.item_capacity = items;
  layout.items = take(items * static_cast<int64_t>(sizeof(WorkItem)));
  layout.redo = take(HasPrefill(problem) ? items * problem.kv_heads * 4 : 0);
  layout.merges = take(items * 4);
  layout.partial_max = take(layout.partial_capacity * 4);
  layout.partial_sum = take(layout.partial_capacity * 4);
  layout.partial_out = take(layout.partial_capacity * problem.head_dim * 4);
  layout.arrivals = take(layout.partial_capacity * 4);
  layout.carry = take(CarryBytes(problem));
  layout.total_bytes = end;
  return layout;
}

int64_t WorkspaceBytes(const Problem& problem) { return MakeWorkspaceLayout(problem).total_bytes; }

Launches MakeLaunches(const Problem& problem, const Config& config) {
  const std::string folder = "src/ops/paged_attention/cuda/";
  const auto blocks = [](int count) { return static_cast<uint32_t>(count); };
  Launches launches;
  launches.schedule = {{folder + "schedule.cu",
                        "paged_attention_schedule",
                        {StrCat("SCHEDULE_THREADS=", config.schedule_threads)}},
                       {.block = {blocks(config.schedule_threads), 1, 1}}};
  const auto add_sm90 = [&](const char* source, const char* entry, int grid, uint32_t block,
                            int64_t shared_bytes, const std::vector<std::string>& own) {
    std::vector<std::string> defines = TypeDefines(problem, config);
    defines.push_back(StrCat("TILE_ROWS=", sm90::PrefillRows(problem.head_dim)));
    defines.insert(defines.end(), own.begin(), own.end());
    launches.attend.push_back({{folder + source, entry, std::move(defines)},
                               {.grid = {blocks(grid), 1, 1},
                                .block = {block, 1, 1},
                                .dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes)}});
  };
  if (config.prefill_sm90) {
    add_sm90("prefill_sm90.cu", "paged_attention_prefill", config.prefill_workers,
             static_cast<uint32_t>(
                 sm90::PrefillThreads(problem.head_dim, IsFloat8(problem.cache_dtype))),
             PrefillSharedBytes(problem),
             {StrCat("TILE_KEYS=", sm90::PrefillKeys(problem.head_dim)),
              StrCat("BOXES=", config.boxes ? 1 : 0)});
  }
  if (config.decode_cluster > 0) {
    add_sm90(
        "decode_cluster_sm90.cu", "paged_attention_decode_cluster", config.decode_workers,
        sm90::DecodeThreads(ClusterRows(problem)), ClusterSharedBytes(problem),
        {StrCat("TILE_KEYS=", sm90::PrefillKeys(problem.head_dim)),
         StrCat("CLUSTER=", config.decode_cluster), StrCat("LINE_ROWS=", ClusterRows(problem))});
    return launches;
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
  if (config.decode_sm90) {
    add_sm90("decode_sm90.cu", "paged_attention_decode", config.decode_workers,
             sm90::DecodeThreads(LineRows(problem)), DecodeSharedBytes(problem),
             {StrCat("TILE_KEYS=", sm90::PrefillKeys(problem.head_dim)),
              StrCat("LINE_ROWS=", LineRows(problem))});
  }
  for (KernelLaunch& launch : launches.attend) launch.config.programmatic = config.overlaps;
  return launches;
}

cuda::TensorMapSpec MakeBoxes(const Problem& problem) {
  const int64_t panel = PanelDims(problem);
  const uint64_t element = DTypeSize(problem.cache_dtype);
  const uint64_t token_bytes = problem.k.token_stride * element;
  const uint64_t panels = problem.head_dim / panel;
  const uint64_t groups = problem.page_size / 8;
  constexpr int kWords = sm90::kPanelDims;  // of 16 bits
  if (IsPadded(problem)) {
    return {{static_cast<uint64_t>(problem.head_dim), 8, groups,
             static_cast<uint64_t>(problem.num_pages), static_cast<uint64_t>(problem.kv_heads)},
            {token_bytes, 8 * token_bytes, problem.k.page_stride * element,
             problem.k.head_stride * element},
            {kWords, 8, static_cast<uint32_t>(BoxTokens(problem) / 8), 1, 1}};
  }
  return {{kWords, 8, (problem.kv_heads - 1) * problem.k.head_stride / panel + panels, groups,
           static_cast<uint64_t>(problem.num_pages)},
          {token_bytes, panel * element, 8 * token_bytes, problem.k.page_stride * element},
          {kWords, 8, static_cast<uint32_t>(std::min<uint64_t>(panels, sm90::kBoxPanels)),
           static_cast<uint32_t>(BoxTokens(problem) / 8), 1}};
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
  p.workers_per_sm = config.blocks_per_sm;
  p.prefill_tile_rows =
      config.prefill_sm90 ? sm90::PrefillRows(problem.head_dim) : config.tile_rows;
  p.decode_max_rows = config.decode_max_rows;
  p.decode_ranges = config.decode_ranges;
  p.line_rows = LineRows(problem);
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
