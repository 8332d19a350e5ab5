// Hopper: prefill_sm90.cu, decode_sm90.cu, decode_cluster_sm90.cu and decode_tokens_sm90.cu, each a
// launch that takes what it is made for and leaves the rest to the next family.
#include <algorithm>
#include <utility>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/family.h"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"

namespace xla_gpu::paged_attention {
namespace {

// The static part of the shared memory of a kernel that has one, rounded up to the alignment of the
// rest: the kernel of clusters has none.
constexpr int64_t kStaticShared = 1024;

// Of a layout that is a type for each head_dim.
template <template <int> typename Shared>
int64_t SharedBytes(int64_t head_dim) {
  return head_dim == 512   ? sizeof(Shared<512>)
         : head_dim == 256 ? sizeof(Shared<256>)
         : head_dim == 128 ? sizeof(Shared<128>)
                           : sizeof(Shared<64>);
}

// The same of decode, whose heads may fill a panel and a half, or three.
template <template <int> typename Shared>
int64_t DecodeSharedBytes(int64_t head_dim) {
  return head_dim == 192  ? sizeof(Shared<192>)
         : head_dim == 96 ? sizeof(Shared<96>)
                          : SharedBytes<Shared>(head_dim);
}

// Why the kernels do not take the problem's types, or such a head_dim; null where they do.
const char* WhyNot(const Problem& problem, const cuda::DeviceInfo& device, bool takes_head_dim,
                   int64_t shared_bytes) {
  if (device.Arch() != "sm_90a") return "not on Hopper";
  if (!TensorCoresTake(problem)) return "dtypes";
  if (problem.has_token_scales()) return "scales of tokens";
  if (!takes_head_dim) return "head_dim";
  return shared_bytes <= device.max_shared_memory_per_block ? nullptr : "shared memory";
}

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
// Of tiles of so many rows, or as many as all widths have.
int64_t PrefillSharedBytes(const Problem& problem, int rows = 0) {
  const sm90::Source source = SourceOf(problem);
  if (rows == sm90::kManyPrefillRows) {
    return sizeof(sm90::PrefillShared<64, sm90::Source::kElements, sm90::kManyPrefillRows>);
  }
  if (source == sm90::Source::kBytes) return PanelsSharedBytes<sm90::Source::kBytes>(problem);
  if (source == sm90::Source::kTerms) return PanelsSharedBytes<sm90::Source::kTerms>(problem);
  const int dims = sm90::PrefillDims(static_cast<int>(problem.head_dim));
  return dims == 192 ? sizeof(PlainPrefill<192>) : SharedBytes<PlainPrefill>(dims);
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
                         : (dim % 8 == 0 && dim >= 16 && dim <= 256) || dim == 512;
  const char* why = WhyNot(problem, device, known, PrefillSharedBytes(problem) + kStaticShared);
  if (why != nullptr || !IsSplit(problem)) return why;
  return CopiedTokens(problem, device) > 0 ? nullptr : "no copy of f32";
}

// Sequences of which a lane of a warp looks at one.
constexpr int kFewSequences = 32;

// Whether the prefill launch takes sequences of few rows, too: where there is room for so few of
// them that they are two pieces for each multiprocessor at most, a launch for them takes longer.
bool PrefillDecodes(const Problem& problem, const cuda::DeviceInfo& device) {
  return !IsDecode(problem) && !problem.batch_invariant &&
         SourceOf(problem) == sm90::Source::kElements && problem.max_seqs <= kFewSequences &&
         problem.max_seqs * problem.kv_heads <= int64_t{2} * device.num_sms &&
         WhyNotPrefill(problem, device) == nullptr;
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

// Rows of a block's tile: those of a third warpgroup, too, where registers suffice and that has
// paid. Sequences need the rows for many tiles, since one of more rows sees more keys that some of
// them do not; and the multiprocessors some tiles each, to be busy to the end.
int PrefillRows(const Problem& problem, const cuda::DeviceInfo& device) {
  constexpr int kMany = sm90::kManyPrefillRows;
  const bool fits = problem.head_dim <= sm90::kPanelDims && problem.soft_cap == 0 &&
                    SourceOf(problem) == sm90::Source::kElements && IsNarrow(problem.out_dtype);
  const int64_t tokens = problem.tokens / std::max(problem.max_seqs, int64_t{1});
  const int64_t seeing =  // one key
      problem.sliding_window > 0 ? std::min(tokens, problem.sliding_window) : tokens;
  const bool pays = seeing * problem.group_size() >= int64_t{8} * kMany &&
                    problem.tokens * problem.q_heads >= int64_t{2} * kMany * device.num_sms;
  return fits && pays ? kMany : sm90::PrefillRows(problem.head_dim);
}

template <int kElement, int kRows, bool kBoxes = true>
struct Decode {
  template <int kHeadDim>
  using Shared = sm90::DecodeShared<kHeadDim, kElement, kRows, kBoxes>;
  template <int kHeadDim>
  using Cluster = sm90::ClusterShared<kHeadDim, kElement, kRows>;
  template <int kHeadDim>
  using Tokens = sm90::TokenShared<kHeadDim, kElement, kRows>;
  static int64_t ClusterBytes(int64_t head_dim, int blocks) {
    return blocks > 1 ? DecodeSharedBytes<Cluster>(head_dim) : DecodeSharedBytes<Tokens>(head_dim);
  }
};

template <bool kBoxes>
int64_t DecodeBytes(const Problem& problem) {
  const int rows = LineRows(problem);
  if (IsFloat8(problem.cache_dtype)) {
    return rows == 8 ? DecodeSharedBytes<Decode<1, 8, kBoxes>::template Shared>(problem.head_dim)
                     : DecodeSharedBytes<Decode<1, 16, kBoxes>::template Shared>(problem.head_dim);
  }
  return rows == 8    ? DecodeSharedBytes<Decode<2, 8, kBoxes>::template Shared>(problem.head_dim)
         : rows == 16 ? DecodeSharedBytes<Decode<2, 16, kBoxes>::template Shared>(problem.head_dim)
                      : DecodeSharedBytes<Decode<2, 32, kBoxes>::template Shared>(problem.head_dim);
}

int64_t DecodeSharedBytes(const Problem& problem, bool boxes) {
  return boxes ? DecodeBytes<true>(problem) : DecodeBytes<false>(problem);
}

// Rows of a tile where clusters share heads: half as many if those of a token fit.
int ClusterRows(const Problem& problem) { return HalfTiles(problem) ? kHalfTile : kDecodeTileRows; }
int64_t ClusterSharedBytes(const Problem& problem, int blocks) {
  const bool narrow = ClusterRows(problem) < kDecodeTileRows;
  if (IsFloat8(problem.cache_dtype)) {
    return narrow ? Decode<1, 8>::ClusterBytes(problem.head_dim, blocks)
                  : Decode<1, 16>::ClusterBytes(problem.head_dim, blocks);
  }
  return narrow ? Decode<2, 8>::ClusterBytes(problem.head_dim, blocks)
                : Decode<2, 16>::ClusterBytes(problem.head_dim, blocks);
}

// Blocks of decode_tokens_sm90.cuh: as many for each head, two a multiprocessor.
int TokenBlocks(const Problem& problem, const cuda::DeviceInfo& device) {
  const int64_t of_head = int64_t{2} * device.num_sms / problem.kv_heads;
  return static_cast<int>(std::min(of_head, problem.tokens) * problem.kv_heads);
}

// Keys that a token sees at most.
int64_t SeenKeys(const Problem& problem) {
  const int64_t window = problem.sliding_window;
  return window > 0 ? std::min(window, problem.max_context()) : problem.max_context();
}

// As WhyNot, of the decode kernels: a row of keys fills whole panels, or one and a half, or three.
const char* WhyNotDecode(const Problem& problem, const cuda::DeviceInfo& device,
                         int64_t shared_bytes) {
  const int64_t dim = problem.head_dim;
  const bool known = dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256 || dim == 512;
  const char* why = WhyNot(problem, device, known, shared_bytes);
  if (why != nullptr) return why;
  if (IsSplit(problem)) return "dtypes";
  const bool whole = !IsFloat8(problem.cache_dtype) || problem.head_dim % 128 == 0;
  return whole ? nullptr : "head_dim of an fp8 cache";
}

// Why the line of decode work has no launch of its own; null where it has.
const char* WhyNotLine(const Problem& problem, const cuda::DeviceInfo& device) {
  if (const char* why = WhyNoLine(problem); why != nullptr) return why;
  const int64_t shared_bytes = DecodeSharedBytes(problem, BoxesFit(problem, device));
  const char* why = WhyNotDecode(problem, device, shared_bytes + kStaticShared);
  if (why != nullptr) return why;
  return DecodeRanges(problem, device.num_sms) > 0 ? nullptr : "no room for partial results";
}

// Of two clusters that share a head.
constexpr int kPairedCluster = 6;

int64_t ClusterBlocks(const Problem& problem, int64_t cluster) {
  return (cluster == kPairedCluster ? 2 : 1) * cluster * problem.kv_heads;
}

// How many blocks may share a kv head in decode_cluster_sm90.cuh, so that all run at once: the most
// first, none where it does not take the problem, of which decode is all. At the end 1, where
// decode_tokens_sm90.cuh does.
std::vector<int> ClusterSizes(const Problem& problem, const cuda::DeviceInfo& device) {
  std::vector<int> sizes;
  const auto add = [&](int blocks, int64_t shared_bytes) {
    if (WhyNotDecode(problem, device, shared_bytes) == nullptr) sizes.push_back(blocks);
  };
  // Of wide heads there is no room for more rows.
  const bool fits = problem.head_dim <= 128 || ClusterRows(problem) < kDecodeTileRows;
  if (fits && problem.tokens <= sm90::kClusterTokens &&
      problem.max_seqs <= sm90::kMostClusterSeqs) {
    // Clusters do not reach every multiprocessor. One of 16 blocks has a GPC to itself, and some
    // GPCs lack multiprocessors: of 132 in GPCs of at most 18 five have 16. Of 6 a head has two,
    // each with whole sequences.
    for (const int blocks : {16, 8, 4, 2, kPairedCluster}) {
      if (blocks == 16 && (device.num_sms < 132 || problem.kv_heads > 4)) continue;
      if (ClusterBlocks(problem, blocks) > device.num_sms * 3 / 4) continue;
      if (blocks == kPairedCluster && (problem.kv_heads < 5 || problem.tokens <= 8)) continue;
      add(blocks, ClusterSharedBytes(problem, blocks));
    }
  }
  // Of several tokens of a sequence each would read its keys.
  if (fits && problem.head_dim <= 256 && problem.tokens <= problem.max_seqs &&
      problem.group_size() <= kDecodeTileRows && TokenBlocks(problem, device) > 0 &&
      BoxesFit(problem, device)) {
    constexpr int64_t kReserved = 1024;  // of each block, by the runtime
    add(1, 2 * ClusterSharedBytes(problem, 1) + kReserved);
  }
  return sizes;
}

// The first of them, or 0 where decode_sm90.cuh is likely faster: it begins later, but reads with
// all multiprocessors. Or `asked`, where that is one of them.
int DecodeCluster(const Problem& problem, const cuda::DeviceInfo& device,
                  std::optional<int> asked) {
  const std::vector<int> sizes = ClusterSizes(problem, device);
  if (asked) return std::ranges::find(sizes, *asked) != sizes.end() ? *asked : 0;
  if (sizes.empty()) return 0;
  // A multiprocessor reads 512 keys of 128 bf16 dimensions in 4 us (60 GB/s), for which the others
  // may have to wait, where decode_sm90.cuh begins as much later.
  constexpr int64_t kMostElements = int64_t{512} * 128;
  const bool whole = sizes.back() == 1 && SeenKeys(problem) * problem.head_dim <= kMostElements;
  const int64_t blocks = sizes[0];
  // Of more tokens all have to be busy, unless most are padding: a served step has room for more
  // sequences.
  const bool few = problem.tokens <= 8 || (!whole && problem.tokens < problem.max_seqs);
  if (blocks == 1 || !few) return whole ? 1 : 0;
  // Half of the multiprocessors read nearly as fast as all of them; of fp8 they compute half as
  // fast.
  const int64_t fast_keys = IsFloat8(problem.cache_dtype) ? 16384 : 131072;
  const int64_t wider = std::max<int64_t>(problem.head_dim / 128, 1);
  const int64_t most_keys = (blocks * problem.kv_heads >= 64 ? fast_keys : 2048 * blocks) / wider;
  if (SeenKeys(problem) <= most_keys / problem.tokens) return sizes[0];
  // The tables of a served step are rarely full.
  constexpr int64_t kMostPairedKeys = 32768;
  const bool paired = std::ranges::find(sizes, kPairedCluster) != sizes.end();
  return paired && SeenKeys(problem) <= kMostPairedKeys / wider ? kPairedCluster : 0;
}

Share Take(const Problem& problem, const cuda::DeviceInfo& device, const Choice& choice,
           Config& config) {
  constexpr const char *kNotChosen = "not chosen", *kUnaligned = "unaligned tensors";
  const bool boxes = BoxesFit(problem, device);
  const bool asked = choice.decode && choice.cluster;  // for a launch of decode
  const bool decodes = choice.prefill && !asked && PrefillDecodes(problem, device);
  config.why_not_line = !choice.aligned ? kUnaligned
                        : decodes       ? "room for few sequences"
                        : choice.decode ? WhyNotLine(problem, device)
                                        : kNotChosen;
  config.decode_launch = config.why_not_line == nullptr;
  config.line_only = config.decode_launch && IsDecode(problem);
  config.why_not_prefill = !choice.aligned    ? kUnaligned
                           : config.line_only ? "decode takes all"
                           : !choice.prefill  ? kNotChosen
                                              : WhyNotPrefill(problem, device);
  config.prefill_launch = config.why_not_prefill == nullptr;
  if (config.prefill_launch) {
    config.prefill_rows = PrefillRows(problem, device);
    config.copy_tokens = CopiedTokens(problem, device);
    if (config.copy_tokens > 0) {
      config.copied_rows = PrefillRows(CopyOf(problem, config.copy_tokens), device);
      config.copied_blocks = PrefillBlocks(problem, true);
      config.copied_workers = device.num_sms / config.copied_blocks;
    }
    if (!IsSplit(problem)) {  // else all that has no copy is left to attend
      // Tiles of fp8 are converted on their way, which the copy engine cannot do.
      config.boxes = !IsFloat8(problem.cache_dtype) && boxes;
      config.prefill_blocks = PrefillBlocks(problem, config.boxes);
      config.prefill_workers = device.num_sms / config.prefill_blocks;
      config.decode_max_rows = decodes ? 0 : kDecodeTileRows;
    }
    if (IsNarrow(problem.cache_dtype)) config.own_seqs = kFewSequences;
  }
  if (config.decode_launch) {
    const int rows = LineRows(problem);
    config.boxes = boxes;
    config.decode_ranges = DecodeRanges(problem, device.num_sms);
    config.decode_max_rows = config.line_only ? static_cast<int>(kMaxInt) : rows;
    config.decode_workers = device.num_sms;
    config.own_seqs = sm90::DecodeThreads(rows, boxes);  // a thread looks at one
    // More where warps take long to end a tile, or blocks of keys take less time since fewer
    // multiprocessors share the bandwidth.
    if (config.line_only && sm90::IsWide(rows)) config.tile_blocks = kMostTileBlocks;
  }
  if (config.line_only) config.decode_cluster = DecodeCluster(problem, device, choice.cluster);
  if (config.decode_cluster == 1) config.decode_workers = TokenBlocks(problem, device);
  if (config.decode_cluster > 1) {
    config.decode_workers = static_cast<int>(ClusterBlocks(problem, config.decode_cluster));
    config.tile_blocks = 2;
    config.many_seqs = problem.max_seqs > sm90::kClusterSeqs;
  }
  // Never kRest: Config describes the last launch also where decode takes all.
  return config.prefill_launch || config.decode_launch ? Share::kSome : Share::kNone;
}

// So many tiles of keys prefill adds up in registers, which lose a little every time, those of
// tensor cores' accumulators more, before the sums go to a second level. 0: no sequence can have so
// many keys that it is needed.
int64_t LevelTiles(const Problem& problem, int64_t max_keys) {
  const sm90::Source source = SourceOf(problem);
  // By results of bf16, or since f32 additions add up the tiles' products.
  const bool hidden = problem.out_dtype == DType::kBF16 ||
                      (problem.out_dtype == DType::kF32 && problem.cache_dtype != DType::kBF16);
  const int64_t tile_keys = sm90::PrefillKeys(problem.head_dim, source);
  const int64_t keys = source == sm90::Source::kTerms ? kF32CarryKeys : hidden ? 32768 : 8192;
  const int64_t tiles = keys / tile_keys;
  return CeilDiv(max_keys, tile_keys) > tiles + 1 ? tiles : 0;  // the last one is left there
}

void Launch(const Problem& problem, const Config& config, std::vector<KernelLaunch>& launches) {
  const auto add = [&](const Problem& of, const std::string& source, const std::string& entry,
                       int grid, int block, int64_t shared_bytes, int tile_rows, int tile_keys,
                       const std::vector<std::string>& own) {
    std::vector<std::string> defines = TypeDefines(of, config);
    defines.push_back(StrCat("TILE_ROWS=", tile_rows));
    defines.push_back(StrCat("TILE_KEYS=", tile_keys));
    defines.insert(defines.end(), own.begin(), own.end());
    launches.push_back({{StrCat(kFolder, source), entry, std::move(defines)},
                        {.grid = {static_cast<uint32_t>(grid), 1, 1},
                         .block = {static_cast<uint32_t>(block), 1, 1},
                         .dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes)}});
  };
  if (config.decode_launch) {
    const bool cluster = config.decode_cluster > 0, pairs = config.boxes && ReadsPairs(problem);
    const int rows = cluster ? ClusterRows(problem) : LineRows(problem);
    std::vector<std::string> own = {StrCat("LINE_ROWS=", rows),
                                    StrCat("BOXES=", config.boxes ? 1 : 0),
                                    StrCat("PAIRS=", pairs ? 1 : 0)};
    if (cluster) own.insert(own.begin(), StrCat("CLUSTER=", config.decode_cluster));
    if (config.decode_cluster == kPairedCluster) own.emplace_back("PAIRED");
    const bool whole = config.decode_cluster == 1;
    if (config.many_seqs) own.push_back("MANY_SEQS");
    const std::string name = whole ? "decode_tokens" : cluster ? "decode_cluster" : "decode";
    add(problem, StrCat(name, "_sm90.cu"), StrCat("paged_attention_", name), config.decode_workers,
        sm90::DecodeThreads(rows, config.boxes, whole),
        cluster ? ClusterSharedBytes(problem, config.decode_cluster)
                : DecodeSharedBytes(problem, config.boxes),
        sm90::PrefillRows(problem.head_dim), sm90::PrefillKeys(problem.head_dim), own);
    launches.back().pairs = pairs;
  }
  const auto add_prefill = [&](const Problem& of, int workers, int rows, bool boxes, int cluster,
                               bool copied) {
    add(of, "prefill_sm90.cu", "paged_attention_prefill", workers * cluster,
        sm90::PrefillThreads(of.head_dim, rows, IsFloat8(of.cache_dtype)),
        PrefillSharedBytes(of, rows), rows, sm90::PrefillKeys(of.head_dim, SourceOf(of)),
        {StrCat("BOXES=", boxes ? 1 : 0), StrCat("CLUSTER=", cluster),
         StrCat("BESIDE_DECODE=", config.decode_launch ? 1 : 0), StrCat("COPIED=", copied ? 1 : 0),
         StrCat("LEVEL_TILES=", LevelTiles(of, problem.max_context()))});
  };
  if (config.prefill_launch && IsSplit(problem)) {
    launches.push_back(
        {{StrCat(kFolder, "copy_terms.cu"),
          "paged_attention_copy_terms",
          {StrCat("HEAD_DIM=", problem.head_dim), "SOFT_CAP=0", "PLAIN=1"}},
         {.grid = {static_cast<uint32_t>(config.copied_workers * config.copied_blocks), 1, 1},
          .block = {kCopyThreads, 1, 1}}});
  } else if (config.prefill_launch) {
    add_prefill(problem, config.prefill_workers, config.prefill_rows, config.boxes,
                config.prefill_blocks, false);
  }
  if (config.copy_tokens > 0) {
    add_prefill(CopyOf(problem, config.copy_tokens), config.copied_workers, config.copied_rows,
                true, config.copied_blocks, true);
  }
}

}  // namespace

extern const Family kSm90 = {Take, Launch};

}  // namespace xla_gpu::paged_attention
