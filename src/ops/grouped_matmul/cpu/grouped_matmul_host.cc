// grouped_matmul on the Host.
#include <algorithm>
#include <vector>

#include "src/ops/grouped_matmul/cpu/kernels.h"
#include "src/ops/grouped_matmul/grouped_matmul.h"

namespace xla_gpu {
namespace grouped_matmul {
namespace {

// Some rows of a group.
struct RowBlock {
  int64_t group;
  int64_t row;
  int64_t rows;
};

Status Multiply(const Problem& p, const Buffers& b, ThreadPool& pool) {
  const int64_t out_size = DTypeSize(p.out_dtype);
  std::vector<RowBlock> blocks;
  int64_t row = 0;
  for (int64_t group = 0; group < p.groups; ++group) {
    const int64_t end = std::min(row + std::max(b.group_sizes[group], 0), p.rows);
    for (; row < end; row += std::min(end - row, kTileRows)) {
      blocks.push_back({group, row, std::min(end - row, kTileRows)});
    }
  }
  const auto at = [](const void* data, int64_t bytes) {
    return static_cast<const char*>(data) + bytes;
  };
  const int64_t column_blocks = (p.columns + kTileColumns - 1) / kTileColumns;
  pool.ParallelFor(static_cast<int64_t>(blocks.size()) * column_blocks, [&](int64_t i) {
    const RowBlock& block = blocks[static_cast<size_t>(i / column_blocks)];
    const int64_t column = i % column_blocks * kTileColumns;
    const int64_t matrix = block.group * p.inner * p.columns + column;
    MultiplyTile({.lhs_dtype = p.lhs_dtype,
                  .rhs_dtype = p.rhs_dtype,
                  .out_dtype = p.out_dtype,
                  .lhs = at(b.lhs, block.row * p.inner * DTypeSize(p.lhs_dtype)),
                  .rows = block.rows,
                  .inner = p.inner,
                  .rhs = at(b.rhs, matrix * DTypeSize(p.rhs_dtype)),
                  .columns = std::min(p.columns - column, kTileColumns),
                  .row_stride = p.columns,
                  .scale = b.rhs_scale == nullptr
                               ? nullptr
                               : b.rhs_scale + block.group * p.scale_blocks * p.columns + column,
                  .blocks = std::max<int64_t>(p.scale_blocks, 1),
                  .out = static_cast<char*>(b.out) + (block.row * p.columns + column) * out_size});
  });
  std::fill_n(static_cast<char*>(b.out) + row * p.columns * out_size,
              (p.rows - row) * p.columns * out_size, '\0');
  return OkStatus();
}

}  // namespace
}  // namespace grouped_matmul

StatusOr<std::unique_ptr<Plan>> MakeGroupedMatmulHostPlan(const Call& call, int device_ordinal) {
  using namespace grouped_matmul;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return MakePlan([problem](const Call& call, const ExecutionContext& context) {
    return Multiply(problem, BuffersFromCall(call), *context.thread_pool);
  });
}

}  // namespace xla_gpu
