// What `xla-gpu tune` times: a call of paged_attention of a given shape on the GPU, in each way
// that gives right results.
#ifndef XLA_GPU_CLI_TUNE_SHAPE_H_
#define XLA_GPU_CLI_TUNE_SHAPE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/core/dtype.h"
#include "src/cuda/bench_device.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::cli {

struct TuneShape {
  int64_t seqs = 8;
  int64_t query_len = 1;
  int64_t context = 4096;
  bool ragged = false;        // contexts from query_len to `context`
  int64_t chunk = 0;          // new tokens of one more sequence
  int64_t chunk_context = 0;  // its tokens, new ones included; 0: as `context`
  int64_t q_heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  int64_t page_size = 16;
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  int64_t window = 0;
  int64_t soft_cap = 0;
  int64_t max_query_len = 0;
  int64_t max_seqs = 0;  // room, as the tensors have it; 0: as much as is needed
  int64_t max_tokens = 0;
  int64_t max_context = 0;

  int64_t longest() const { return chunk > 0 ? std::max(context, chunk_context) : context; }
  // An error that names the options where they contradict each other or are of too much memory.
  Status Check() const;
};

struct TimedChoice {
  std::string launches;  // paged_attention::NameOf
  double microseconds;   // the median
};

struct TunedProblem {
  paged_attention::Problem problem;
  std::vector<TimedChoice> choices;  // the model's first
};

// Times all; an error where their results differ by more than rounding. `progress`: what is under
// way.
StatusOr<TunedProblem> TimeChoices(cuda::BenchDevice& device, const TuneShape& shape,
                                   const std::function<void(const std::string&)>& progress);

// The index of the one to take: the fastest, unless the model's is as fast but for noise.
size_t BestOf(const std::vector<TimedChoice>& choices);

// sqrt(sum (a - b)^2 / sum b^2) over the elements of two tensors; NaN where one has one.
double RelativeError(const void* a, const void* b, DType dtype, int64_t count);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_TUNE_SHAPE_H_
