// paged_attention on the Host: the batch is read and checked, cut into tasks for the thread pool,
// and each task run by a kernel (kernels.h).
//
// Same inputs, same bits, whatever the number of threads and the rest of the batch (tasks.h).
#include <algorithm>
#include <limits>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/host_rows.h"
#include "src/ops/paged_attention/cpu/batch.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/tasks.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

// Partials of the sequences decoded at a time: 64 MB, or one sequence's.
constexpr int64_t kMaxPartialFloats = 16 << 20;

// What one call of the op needs. One a thread, so that its vectors keep their memory.
class Work {
 public:
  static Work& OfThisThread() {
    static thread_local Work work;
    return work;
  }

  void Run(const Problem& problem, const Buffers& buffers, ThreadPool& pool) {
    p_ = &problem;
    b_ = &buffers;
    batch_.Read(problem, buffers);
    for (const RowRange& rows : batch_.unowned_rows) {
      Fill(rows, 0.0f, -std::numeric_limits<float>::infinity());
    }
    for (const RowRange& rows : batch_.invalid_rows) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      Fill(rows, nan, nan);
    }
    RunSegments(pool);
  }

 private:
  void Fill(const RowRange& rows, float out, float lse) {
    const int64_t n = p_->q_heads * p_->head_dim;
    const int64_t size = DTypeSize(p_->out_dtype);
    char* to = static_cast<char*>(b_->out) + rows.begin * n * size;
    if (out == 0.0f) {
      std::fill_n(to, (rows.end - rows.begin) * n * size, '\0');
    } else {
      for (int64_t i = 0; i < (rows.end - rows.begin) * n; ++i) {
        StoreFromDouble(to, p_->out_dtype, i, out);
      }
    }
    if (!p_->return_lse) return;
    std::fill(b_->lse + rows.begin * p_->q_heads, b_->lse + rows.end * p_->q_heads, lse);
  }

  // All segments together; where the partials of those decoded would take too much memory, in
  // several turns.
  void RunSegments(ThreadPool& pool) {
    for (size_t next = 0; next < batch_.segments.size();) {
      turn_.clear();
      partials_.clear();
      int64_t floats = 0;
      for (; next < batch_.segments.size(); ++next) {
        const Segment& segment = batch_.segments[next];
        const bool decode = IsDecode(*p_, segment);
        const int64_t n =
            decode ? SplitsOf(*p_, segment).count * Partial::NumFloats(*p_, segment.rows) : 0;
        if (floats > 0 && floats + n > kMaxPartialFloats) break;
        turn_.push_back(segment);
        partials_.push_back(floats);
        floats += n;
      }
      RunTurn(floats, pool);
    }
  }

  void RunTurn(int64_t floats, ThreadPool& pool) {
    memory_ = ThreadScratch(ScratchSlot::kPartials, floats);
    tasks_ = CutIntoTasks(*p_, turn_, pool.num_threads());
    pool.ParallelFor(static_cast<int64_t>(tasks_.size()),
                     [this](int64_t i) { RunTask(tasks_[static_cast<size_t>(i)]); });
    // Merging costs much less than waking threads unless there is much to merge.
    const int64_t n = static_cast<int64_t>(turn_.size()) * p_->kv_heads;
    const int64_t per_task = std::max<int64_t>(1, (1 << 18) * n / std::max<int64_t>(1, floats));
    ParallelForRanges(pool, n, per_task, [this](int64_t i, int64_t end) {
      for (; i < end; ++i) Merge(static_cast<size_t>(i / p_->kv_heads), i % p_->kv_heads);
    });
  }

  void RunTask(const Task& task) const {
    const auto index = static_cast<size_t>(task.segment);
    const Segment& segment = turn_[index];
    if (!IsDecode(*p_, segment)) {
      return PrefillBlock(
          {p_, b_, &segment, task.first, task.size, task.first_head, task.num_heads});
    }
    float* memory = memory_ + partials_[index] + task.first * Partial::NumFloats(*p_, segment.rows);
    DecodeSplit({p_, b_, &segment, SplitsOf(*p_, segment).At(task.first), task.first_head,
                 task.num_heads,
                 Partial::At(*p_, segment.rows, memory).From(*p_, segment.rows, task.first_head)});
  }

  void Merge(size_t index, int64_t kv_head) const {
    const Segment& segment = turn_[index];
    if (!IsDecode(*p_, segment)) return;
    MergeHead({p_, b_, &segment, memory_ + partials_[index], SplitsOf(*p_, segment).count},
              kv_head);
  }

  const Problem* p_ = nullptr;
  const Buffers* b_ = nullptr;
  Batch batch_;
  std::vector<Segment> turn_;      // segments that are computed together
  std::vector<int64_t> partials_;  // where theirs begin in memory_
  std::vector<Task> tasks_;
  float* memory_ = nullptr;
};

}  // namespace

void AttendOnHost(const Problem& problem, const Buffers& buffers, ThreadPool& pool) {
  Work::OfThisThread().Run(problem, buffers, pool);
}

}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionHostPlan(const Call& call, int device_ordinal) {
  using namespace paged_attention;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return MakePlan([problem](const Call& call, const ExecutionContext& context) {
    AttendOnHost(problem, BuffersFromCall(problem, call), *context.thread_pool);
    return OkStatus();
  });
}

}  // namespace xla_gpu
