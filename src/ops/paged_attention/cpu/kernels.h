// The Host kernels' units of work. Each is one call of a function compiled for several instruction
// sets, the best of which is chosen at run time (kernels.cc).
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_KERNELS_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::paged_attention {

// The query rows of one sequence, or those of them that it owns (batch.h), all valid.
struct Segment {
  const int32_t* pages;  // its row of block_tables
  int64_t context;       // context_len
  int64_t row_begin;     // query rows [row_begin, row_begin + rows)
  int64_t rows;
  int64_t pos;  // where the first row stands
};

// Keys [begin, end) that the query at `pos` sees: none where it stands before the first token.
struct KeyRange {
  int64_t begin;
  int64_t end;
};

inline KeyRange VisibleKeys(const Problem& problem, const Segment& segment, int64_t pos) {
  const int64_t window = problem.sliding_window;
  return {window == 0 ? 0 : std::max<int64_t>(0, pos - window + 1),
          problem.causal ? std::max<int64_t>(0, pos + 1) : segment.context};
}

// Rows of f32 scratch are padded to whole vectors of every target.
using paged_cache::kMaxHeadDim;
constexpr int64_t PadHeadDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Decode takes the q heads of one kv head in tiles of this many.
constexpr int64_t HeadTile(int64_t group_size) { return group_size > 2 ? 4 : group_size; }
constexpr int64_t PadGroup(int64_t group_size) {
  const int64_t tile = HeadTile(group_size);
  return (group_size + tile - 1) / tile * tile;
}

// Unnormalised attention over some keys: for each (row of the segment, kv head, padded group head)
// the sum of weight * value in `acc`, the sum of the weights, and `max`: the largest x or little
// below it (x and weight: LogitScale in logits-inl.h).
struct Partial {
  float* acc;  // [kv_heads, rows, PadGroup, PadHeadDim]
  float* sum;  // [kv_heads, rows, PadGroup]
  float* max;  // as sum

  static int64_t NumHeads(const Problem& p, int64_t rows) {
    return rows * p.kv_heads * PadGroup(p.group_size());
  }
  static int64_t NumFloats(const Problem& p, int64_t rows) {
    return (NumHeads(p, rows) * (PadHeadDim(p.head_dim) + 2) + 15) / 16 * 16;
  }
  static Partial At(const Problem& p, int64_t rows, float* memory) {
    const int64_t heads = NumHeads(p, rows);
    float* sum = memory + heads * PadHeadDim(p.head_dim);
    return {memory, sum, sum + heads};
  }
  // The part from a kv head on.
  Partial From(const Problem& p, int64_t rows, int64_t kv_head) const {
    const int64_t heads = kv_head * rows * PadGroup(p.group_size());
    return {acc + heads * PadHeadDim(p.head_dim), sum + heads, max + heads};
  }
};

// Flash decoding: attention of all rows of a segment over the keys of one split, by the q heads of
// `num_heads` kv heads from `first_head`.
struct DecodeTask {
  const Problem* problem;
  const Buffers* buffers;
  const Segment* segment;
  KeyRange keys;
  int64_t first_head;
  int64_t num_heads;
  Partial partial;  // from first_head on
};
void DecodeSplit(const DecodeTask& task);

// Joins the partials of a segment's splits, which lie one after the other, adds the sinks, writes
// out and lse of all rows and the q heads of one kv head.
struct MergeTask {
  const Problem* problem;
  const Buffers* buffers;
  const Segment* segment;
  float* partials;
  int64_t num_splits;
};
void MergeHead(const MergeTask& task, int64_t kv_head);

// Flash attention: `tokens` query rows of a segment from `first_token`, `num_heads` q heads from
// `first_head`, all of one kv head. A row of the task is one token and head: at most kPrefillRows.
inline constexpr int64_t kPrefillRows = 240;
struct PrefillTask {
  const Problem* problem;
  const Buffers* buffers;
  const Segment* segment;
  int64_t first_token;
  int64_t tokens;
  int64_t first_head;
  int64_t num_heads;
};
void PrefillBlock(const PrefillTask& task);

// A per-thread buffer of at least n floats, 64-byte aligned, kept for the next call. One buffer for
// each `slot`.
enum class ScratchSlot { kTask, kPartials, kCount };
float* ThreadScratch(ScratchSlot slot, int64_t n);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_KERNELS_H_
