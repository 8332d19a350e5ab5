// paged_attention on the Host: the batch is read and checked, cut into tasks for the thread pool,
// and each task run by a kernel (kernels.h).
//
// How a sequence is cut depends on that sequence and on the problem alone, never on the number of
// threads or on the rest of the batch: same inputs, same bits, batch invariant always.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "src/core/float_types.h"
#include "src/ops/paged_attention/cpu/batch.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

// A split is long enough to be worth its merging, and a context has at most kMaxSplits.
constexpr int64_t kMinSplitKeys = 256;
constexpr int64_t kMaxSplits = 64;
// Partials of the sequences decoded at a time: 64 MB, or one sequence's.
constexpr int64_t kMaxPartialFloats = 16 << 20;

// Decode reads K and V once for each query token, prefill packs them once for a block of tokens.
bool IsDecode(const Problem& p, const Segment& segment) {
  return segment.rows == 1 || (segment.rows <= 4 && segment.rows * p.group_size() <= 16);
}

struct DecodeWork {
  const Segment* segment;
  int64_t first_key;
  int64_t split_keys;
  int64_t num_splits;
  float* partials;
};

// What one call of the op is cut into. One a thread, so that its vectors keep their memory.
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
    RunPrefill(pool);
    RunDecode(pool);
  }

 private:
  void Fill(const RowRange& rows, float out, float lse) {
    const int64_t n = p_->q_heads * p_->head_dim;
    const int64_t size = DTypeSize(p_->out_dtype);
    char* to = static_cast<char*>(b_->out) + rows.begin * n * size;
    if (out == 0.0f) {
      std::memset(to, 0, (rows.end - rows.begin) * n * size);
    } else {
      for (int64_t i = 0; i < (rows.end - rows.begin) * n; ++i) {
        StoreFromDouble(to, p_->out_dtype, i, out);
      }
    }
    if (!p_->return_lse) return;
    std::fill(b_->lse + rows.begin * p_->q_heads, b_->lse + rows.end * p_->q_heads, lse);
  }

  void RunPrefill(ThreadPool& pool) {
    prefill_.clear();
    for (const Segment& segment : batch_.segments) {
      if (!IsDecode(*p_, segment)) AddPrefill(segment);
    }
    // From the last rows, which see most, to the first: no thread is left with a long task at the
    // end.
    const int64_t n = static_cast<int64_t>(prefill_.size());
    pool.ParallelFor(n, [this, n](int64_t i) { PrefillBlock(prefill_[n - 1 - i]); });
  }

  void AddPrefill(const Segment& segment) {
    const int64_t group = p_->group_size();
    const int64_t tokens = std::max<int64_t>(1, kPrefillRows / group);
    const int64_t heads = std::min(group, kPrefillRows);
    for (int64_t token = 0; token < segment.rows; token += tokens) {
      for (int64_t kv_head = 0; kv_head < p_->kv_heads; ++kv_head) {
        for (int64_t g = 0; g < group; g += heads) {
          prefill_.push_back({p_, b_, &segment, token, std::min(tokens, segment.rows - token),
                              kv_head * group + g, std::min(heads, group - g)});
        }
      }
    }
  }

  void RunDecode(ThreadPool& pool) {
    const std::vector<Segment>& segments = batch_.segments;
    for (size_t next = 0; next < segments.size();) {
      decode_.clear();
      int64_t floats = 0;
      for (; next < segments.size(); ++next) {
        if (!IsDecode(*p_, segments[next])) continue;
        const DecodeWork work = Split(segments[next]);
        const int64_t n = work.num_splits * Partial::NumFloats(*p_, segments[next].rows);
        if (!decode_.empty() && floats + n > kMaxPartialFloats) break;
        decode_.push_back(work);
        floats += n;
      }
      float* memory = ThreadScratch(ScratchSlot::kPartials, floats);
      splits_.clear();
      for (DecodeWork& work : decode_) {
        work.partials = memory;
        memory += work.num_splits * Partial::NumFloats(*p_, work.segment->rows);
        for (int64_t i = 0; i < work.num_splits; ++i) splits_.push_back({&work, i});
      }
      pool.ParallelFor(static_cast<int64_t>(splits_.size()),
                       [this](int64_t i) { RunSplit(*splits_[i].work, splits_[i].index); });
      // Merging costs much less than waking threads unless there are many rows to merge.
      const int64_t n = static_cast<int64_t>(decode_.size());
      const int64_t per_task = std::max<int64_t>(1, (1 << 18) * n / std::max<int64_t>(1, floats));
      pool.ParallelFor((n + per_task - 1) / per_task, [this, n, per_task](int64_t task) {
        for (int64_t i = task * per_task; i < std::min(n, (task + 1) * per_task); ++i) {
          Merge(decode_[i]);
        }
      });
    }
  }

  DecodeWork Split(const Segment& segment) const {
    const int64_t first = VisibleKeys(*p_, segment, segment.pos).begin;
    const int64_t keys = VisibleKeys(*p_, segment, segment.pos + segment.rows - 1).end - first;
    const int64_t longest = (keys + kMaxSplits - 1) / kMaxSplits;
    const int64_t split_keys =
        std::max(kMinSplitKeys, (longest + kMinSplitKeys - 1) / kMinSplitKeys * kMinSplitKeys);
    return {&segment, first, split_keys, (keys + split_keys - 1) / split_keys, nullptr};
  }

  void RunSplit(const DecodeWork& work, int64_t index) const {
    const int64_t end =
        VisibleKeys(*p_, *work.segment, work.segment->pos + work.segment->rows - 1).end;
    const int64_t begin = work.first_key + index * work.split_keys;
    const int64_t stride = Partial::NumFloats(*p_, work.segment->rows);
    DecodeSplit({p_,
                 b_,
                 work.segment,
                 {begin, std::min(end, begin + work.split_keys)},
                 Partial::At(*p_, work.segment->rows, work.partials + index * stride)});
  }

  void Merge(const DecodeWork& work) const {
    for (int64_t row = 0; row < work.segment->rows; ++row) {
      MergeRow({p_, b_, work.segment, work.partials, work.num_splits}, row);
    }
  }

  struct SplitOf {
    const DecodeWork* work;
    int64_t index;
  };

  const Problem* p_ = nullptr;
  const Buffers* b_ = nullptr;
  Batch batch_;
  std::vector<PrefillTask> prefill_;
  std::vector<DecodeWork> decode_;
  std::vector<SplitOf> splits_;
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
