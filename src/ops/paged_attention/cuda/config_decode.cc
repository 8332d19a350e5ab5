// The launches of decode on Hopper: what decode_sm90.cuh and decode_cluster_sm90.cuh take, and how.
#include <algorithm>
#include <cstddef>

#include "src/ops/paged_attention/cuda/config_parts.h"
#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"

namespace xla_gpu::paged_attention {
namespace {

template <int kElement, int kRows, bool kBoxes = true>
struct Decode {
  template <int kHeadDim>
  using Shared = sm90::DecodeShared<kHeadDim, kElement, kRows, kBoxes>;
  template <int kHeadDim>
  using Cluster = sm90::ClusterShared<kHeadDim, kElement, kRows>;
  template <int kHeadDim>
  using Tokens = sm90::TokenShared<kHeadDim, kElement, kRows>;
  static int64_t ClusterBytes(int64_t head_dim, int blocks) {
    return blocks > 1 ? SharedBytes<Cluster>(head_dim) : SharedBytes<Tokens>(head_dim);
  }
};

template <bool kBoxes>
int64_t DecodeBytes(const Problem& problem) {
  const int rows = LineRows(problem);
  if (IsFloat8(problem.cache_dtype)) {
    return rows == 8 ? SharedBytes<Decode<1, 8, kBoxes>::template Shared>(problem.head_dim)
                     : SharedBytes<Decode<1, 16, kBoxes>::template Shared>(problem.head_dim);
  }
  return rows == 8    ? SharedBytes<Decode<2, 8, kBoxes>::template Shared>(problem.head_dim)
         : rows == 16 ? SharedBytes<Decode<2, 16, kBoxes>::template Shared>(problem.head_dim)
                      : SharedBytes<Decode<2, 32, kBoxes>::template Shared>(problem.head_dim);
}

// As WhyNotSm90, of the decode kernels: a row of keys fills whole panels.
const char* WhyNotSm90Decode(const Problem& problem, const cuda::DeviceInfo& device,
                             int64_t shared_bytes) {
  const int64_t dim = problem.head_dim;
  const bool known = dim == 64 || dim == 128 || dim == 256 || dim == 512;
  const char* why = WhyNotSm90(problem, device, known, shared_bytes);
  if (why != nullptr) return why;
  if (IsSplit(problem)) return "dtypes";
  const bool whole = !IsFloat8(problem.cache_dtype) || problem.head_dim >= 128;
  return whole ? nullptr : "head_dim of an fp8 cache";
}

constexpr int kHalfTile = kDecodeTileRows / 2;

// A token of each sequence at most, or several by promise, whose rows are half a tile at most.
bool HalfTiles(const Problem& problem) {
  const int64_t promised = PromisedRows(problem);
  if (promised > 0) return promised <= kHalfTile;
  return problem.tokens <= problem.max_seqs && problem.group_size() <= kHalfTile;
}

// Keys that a token sees at most.
int64_t SeenKeys(const Problem& problem) {
  const int64_t window = problem.sliding_window;
  return window > 0 ? std::min(window, problem.max_context()) : problem.max_context();
}

}  // namespace

bool IsDecode(const Problem& problem) {
  const int64_t most_rows = IsFloat8(problem.cache_dtype) || problem.head_dim > 128 ? 32 : 128;
  const int64_t few_rows = std::min(most_rows, int64_t{2} * kDecodeTileRows * problem.max_seqs);
  return problem.tokens > 0 && problem.max_seqs > 0 &&
         (PromisedRows(problem) > 0 || problem.tokens <= problem.max_seqs ||
          problem.tokens * problem.group_size() <= few_rows);
}

int LineRows(const Problem& problem) {
  if (problem.head_dim > 128) return HalfTiles(problem) ? kHalfTile : kDecodeTileRows;
  // Half a narrow tile costs less than a wide one. Where sequences have few tokens each, drafts
  // perhaps, all of them are one tile; beside prompts a sequence has one token.
  const int64_t group = problem.group_size(), promised = PromisedRows(problem);
  const int64_t rows =
      promised > 0 ? promised
                   : CeilDiv(problem.tokens * group, std::max(problem.max_seqs, int64_t{1}));
  const bool narrow = group <= kHalfTile && rows <= kHalfTile;
  if (narrow || IsFloat8(problem.cache_dtype)) return kDecodeTileRows;
  const bool drafts = rows <= int64_t{2} * kDecodeTileRows;
  return drafts || group > kDecodeTileRows ? 2 * kDecodeTileRows : kDecodeTileRows;
}

bool IsMixed(const Problem& problem) {
  constexpr int64_t kFewSequences = 8;
  return problem.tokens > 0 && !IsDecode(problem) && !IsFloat8(problem.cache_dtype) &&
         problem.max_seqs >= kFewSequences;
}

int64_t DecodeSharedBytes(const Problem& problem, bool boxes) {
  return boxes ? DecodeBytes<true>(problem) : DecodeBytes<false>(problem);
}

int ClusterRows(const Problem& problem) {
  return HalfTiles(problem) ? kDecodeTileRows / 2 : kDecodeTileRows;
}
int64_t ClusterSharedBytes(const Problem& problem, int blocks) {
  const bool narrow = ClusterRows(problem) < kDecodeTileRows;
  if (IsFloat8(problem.cache_dtype)) {
    return narrow ? Decode<1, 8>::ClusterBytes(problem.head_dim, blocks)
                  : Decode<1, 16>::ClusterBytes(problem.head_dim, blocks);
  }
  return narrow ? Decode<2, 8>::ClusterBytes(problem.head_dim, blocks)
                : Decode<2, 16>::ClusterBytes(problem.head_dim, blocks);
}

int TokenBlocks(const Problem& problem, const cuda::DeviceInfo& device) {
  const int64_t of_head = int64_t{2} * device.num_sms / problem.kv_heads;
  return static_cast<int>(std::min(of_head, problem.tokens) * problem.kv_heads);
}

std::vector<int> ClusterSizes(const Problem& problem, const cuda::DeviceInfo& device) {
  if (WhyNotLine(problem, device) != nullptr || !IsDecode(problem)) return {};
  std::vector<int> sizes;
  const auto add = [&](int blocks, int64_t shared_bytes) {
    if (WhyNotSm90Decode(problem, device, shared_bytes) == nullptr) sizes.push_back(blocks);
  };
  // Of wide heads there is no room for more rows.
  const bool fits = problem.head_dim <= 128 || ClusterRows(problem) < kDecodeTileRows;
  if (fits && problem.tokens <= 8 && problem.max_seqs <= sm90::kClusterSeqs) {
    // Clusters do not reach every multiprocessor. One of 16 blocks has a GPC to itself, and some
    // GPCs lack multiprocessors: of 132 in GPCs of at most 18 five have 16.
    for (const int blocks : {16, 8, 4, 2}) {
      if (blocks == 16 && (device.num_sms < 132 || problem.kv_heads > 4)) continue;
      if (blocks * problem.kv_heads > device.num_sms * 3 / 4) continue;
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

int DecodeCluster(const Problem& problem, const cuda::DeviceInfo& device) {
  const std::vector<int> sizes = ClusterSizes(problem, device);
  if (sizes.empty()) return 0;
  // A multiprocessor reads 512 keys of 128 bf16 dimensions in 4 us (60 GB/s), for which the others
  // may have to wait, where decode_sm90.cuh begins as much later.
  constexpr int64_t kMostElements = int64_t{512} * 128;
  const bool whole = sizes.back() == 1 && SeenKeys(problem) * problem.head_dim <= kMostElements;
  const int64_t blocks = sizes[0];
  if (blocks == 1) return whole ? 1 : 0;
  // Half of the multiprocessors read nearly as fast as all of them; of fp8 they compute half as
  // fast.
  const int64_t fast_keys = IsFloat8(problem.cache_dtype) ? 16384 : 131072;
  const int64_t wider = std::max<int64_t>(problem.head_dim / 128, 1);
  const int64_t most_keys = (blocks * problem.kv_heads >= 64 ? fast_keys : 2048 * blocks) / wider;
  return SeenKeys(problem) <= most_keys / problem.tokens ? sizes[0] : 0;
}

int64_t PartRows(const Problem& problem) {
  return std::min<int64_t>(LineRows(problem), problem.tokens * problem.group_size());
}
int64_t MostLineBlocks(const Problem& problem) {
  const int64_t tiles = problem.tokens * CeilDiv(problem.group_size(), LineRows(problem));
  const int64_t blocks =
      CeilDiv(std::min(problem.max_context(), kMaxInt), kSplitTokens) + kMostTileBlocks;
  return tiles > kMaxInt / blocks ? kMaxInt : tiles * blocks;
}

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

const char* WhyNotLine(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!IsDecode(problem) && !IsMixed(problem)) {
    return IsFloat8(problem.cache_dtype) ? "an fp8 cache, room for prompts"
                                         : "room for few sequences";
  }
  // Where its ranges cut a sequence depends on the lengths of all.
  if (problem.batch_invariant) return "batch_invariant";
  if (MostLineBlocks(problem) > kMaxInt / 2) return "too many keys";
  const int64_t shared_bytes = DecodeSharedBytes(problem, BoxesFit(problem, device));
  const char* why = WhyNotSm90Decode(problem, device, shared_bytes + kStaticShared);
  if (why != nullptr) return why;
  return DecodeRanges(problem, device.num_sms) > 0 ? nullptr : "no room for partial results";
}

}  // namespace xla_gpu::paged_attention
