// The line of decode work (line.cuh), as the Host knows it: which problems have one, and how it is
// cut.
#include <algorithm>

#include "src/ops/paged_attention/cuda/config_parts.h"

namespace xla_gpu::paged_attention {

bool HalfTiles(const Problem& problem) {
  const int64_t promised = PromisedRows(problem);
  if (promised > 0) return promised <= kHalfTile;
  return problem.tokens <= problem.max_seqs && problem.group_size() <= kHalfTile;
}

bool IsDecode(const Problem& problem) {
  const int64_t most_rows = TakesWideTiles(problem) ? 128 : 32;
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
  if (narrow || !TakesWideTiles(problem)) return kDecodeTileRows;
  const bool drafts = rows <= int64_t{2} * kDecodeTileRows;
  return drafts || group > kDecodeTileRows ? 2 * kDecodeTileRows : kDecodeTileRows;
}

bool IsMixed(const Problem& problem) {
  constexpr int64_t kFewSequences = 8;
  return problem.tokens > 0 && !IsDecode(problem) && !IsFloat8(problem.cache_dtype) &&
         problem.max_seqs >= kFewSequences;
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

const char* WhyNoLine(const Problem& problem) {
  if (!IsDecode(problem) && !IsMixed(problem)) {
    return IsFloat8(problem.cache_dtype) ? "an fp8 cache, room for prompts"
                                         : "room for few sequences";
  }
  // Where its ranges cut a sequence depends on the lengths of all.
  if (problem.batch_invariant) return "batch_invariant";
  if (MostLineBlocks(problem) > kMaxInt / 2) return "too many keys";
  return nullptr;
}

}  // namespace xla_gpu::paged_attention
