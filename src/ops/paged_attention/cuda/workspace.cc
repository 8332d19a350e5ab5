// The parts of the workspace and their sizes.
#include <algorithm>

#include "src/ops/paged_attention/cuda/config_parts.h"

namespace xla_gpu::paged_attention {
namespace {

// Room for this many split items at least; more would not fill a device better.
constexpr int64_t kPartialItems = 2048;
// Of the copy of keys and values at most, each: 65536 tokens of 8 heads of 128.
constexpr int64_t kMostCopyElements = 64 << 20;
// And for this many split prefill tiles: as many as a large device runs at once.
constexpr int64_t kPartialPrefillTiles = 384;

int64_t CarryBytes(const Problem& problem) {
  // Of wide heads attend_simt.cu may be what a device runs.
  const bool narrow = IsNarrow(problem.query_dtype) && TensorCoresTake(problem);
  if (problem.max_context() <= SimtOf(problem).carry_keys(narrow)) return 0;
  const int64_t floats = TensorCoresTake(problem)
                             ? MmaOf(problem, MmaOf(problem).widest_tile()).carry_floats()
                             : SimtOf(problem).carry_floats();
  return MostWorkers(problem) * kAttendThreads * floats * int64_t{sizeof(float)};
}

}  // namespace

int LeastCopyRows(const Problem& problem) { return IsSplit(problem) ? 129 : 257; }

int64_t CopyTokens(const Problem& problem) {
  const bool fp8 =
      IsFloat8(problem.cache_dtype) && IsNarrow(problem.query_dtype) && IsNarrow(problem.out_dtype);
  const bool f32 = IsSplit(problem) && TensorCoresTake(problem) && problem.out_dtype == DType::kF32;
  if (!(fp8 || f32) || !HasPrefill(problem) || problem.batch_invariant) return 0;
  if (problem.has_token_scales()) return 0;
  if (problem.head_dim != 64 && problem.head_dim != 128) return 0;
  // No sequence has fewer rows.
  const int64_t sequences =
      std::min(problem.max_seqs, problem.tokens * problem.group_size() / LeastCopyRows(problem));
  const int64_t context = RoundUp(std::min(problem.max_context(), kMaxInt), kCopyTokens);
  const int64_t elements = std::max<int64_t>(problem.kv_heads, 1) * problem.head_dim;
  return std::min(sequences * context, kMostCopyElements / elements / kCopyTokens * kCopyTokens);
}

Problem CopyOf(const Problem& problem, int64_t tokens) {
  Problem copy = problem;
  copy.cache_dtype = IsSplit(problem) ? DType::kBF16 : problem.query_dtype;
  copy.page_size = kCopyTokens;
  copy.num_pages = tokens / kCopyTokens * (IsSplit(problem) ? kTermsOfValues : 1);
  copy.k = copy.v = {.offset = 0,
                     .page_stride = problem.kv_heads * kCopyTokens * problem.head_dim,
                     .token_stride = problem.head_dim,
                     .head_stride = kCopyTokens * problem.head_dim};
  return copy;
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
                                    kPartialPrefillTiles * MmaOf(problem).widest_tile());
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
  const int64_t copied = CopyTokens(problem) * problem.kv_heads * problem.head_dim * 2;
  layout.copied_keys = take(copied * (IsSplit(problem) ? kTermsOfDots : 1));
  layout.copied_values = take(copied * (IsSplit(problem) ? kTermsOfValues : 1));
  layout.carry = take(CarryBytes(problem));
  layout.total_bytes = end;
  return layout;
}

int64_t WorkspaceBytes(const Problem& problem) { return MakeWorkspaceLayout(problem).total_bytes; }

}  // namespace xla_gpu::paged_attention
