// From the index arguments of a call to segments of query rows, with everything about them checked:
// past this point no index can lead outside the buffers.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CPU_BATCH_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_BATCH_H_

#include <vector>

#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::paged_attention {

struct RowRange {
  int64_t begin;
  int64_t end;
};

struct Batch {
  std::vector<Segment> segments;       // rows to compute, no row twice
  std::vector<RowRange> invalid_rows;  // of sequences with a wrong index (problem.h): NaN
  std::vector<RowRange> unowned_rows;  // of no sequence: 0

  // Reuses the vectors' memory. Where sequences overlap, a row belongs to the last valid one.
  void Read(const Problem& problem, const Buffers& buffers);

 private:
  void AddRows(const Problem& problem, const Buffers& buffers, int64_t seq, RowRange rows);
  void ReadOverlapping(const Problem& problem, const Buffers& buffers, int64_t num_seqs);

  std::vector<int32_t> owners_;  // of each row: sequence or -1
};

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CPU_BATCH_H_
