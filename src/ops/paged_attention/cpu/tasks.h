// What one call is cut into, so that many threads finish together.
//
// A decoded sequence's keys are cut into splits by that sequence and the problem alone, since a
// row's bits hang on its splits. On which rows, or which heads, share a task they do not hang: how
// many take part follows the whole batch and the number of threads.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_TASKS_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_TASKS_H_

#include <vector>

#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::paged_attention {

// Decode reads K and V once for each query token, prefill packs them once for a block of tokens.
inline bool IsDecode(const Problem& p, const Segment& segment) {
  return segment.rows == 1 || (segment.rows <= 4 && segment.rows * p.group_size() <= 16);
}

// The splits of a decoded segment's keys.
struct Splits {
  int64_t begin;
  int64_t end;
  int64_t keys;  // of each but the last
  int64_t count;

  KeyRange At(int64_t split) const {
    return {begin + split * keys, std::min(end, begin + (split + 1) * keys)};
  }
};
Splits SplitsOf(const Problem& problem, const Segment& segment);

// Of prefill `size` tokens from token `first`, by q heads; of decode split `first`, by kv heads.
struct Task {
  int64_t segment;  // its index
  int64_t first;
  int64_t size;
  int64_t first_head;
  int64_t num_heads;
  double cost;  // about that of so many multiplications and additions
};

// The tasks of some segments, those of most cost first, since threads take them in this order.
std::vector<Task> CutIntoTasks(const Problem& problem, const std::vector<Segment>& segments,
                               int threads);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_TASKS_H_
