// update_kv_cache on the Host.
#include <algorithm>
#include <cstring>

#include "src/core/host_rows.h"
#include "src/ops/update_kv_cache/cpu/kernels.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace update_kv_cache {
namespace {

// Tasks share the slots among them, so that tokens of one slot are written by one task, in order.
constexpr int64_t kMaxTasks = 16;
constexpr int64_t kMinTokensPerTask = 16;
constexpr int64_t kCopyBytes = 1 << 20;

void CopyCache(const void* from, void* to, int64_t bytes, ThreadPool& pool) {
  if (from == to) return;  // updated in place
  ParallelForRanges(pool, bytes, kCopyBytes, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

// `scale`: null, one for all heads or, with `scale_step` 1, one for each.
void WriteToken(const Problem& p, const void* input, int64_t token, const float* scale,
                int64_t scale_step, void* cache, const paged_cache::CacheLayout& layout,
                int64_t slot) {
  const int64_t from_size = DTypeSize(p.input_dtype);
  const int64_t to_size = DTypeSize(p.cache_dtype);
  const char* from = static_cast<const char*>(input) + token * p.kv_heads * p.head_dim * from_size;
  char* to =
      static_cast<char*>(cache) + layout.At(slot / p.page_size, slot % p.page_size, 0) * to_size;
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    const float divisor = scale == nullptr ? 1.0f : scale[head * scale_step];
    if (p.cache_dtype == p.input_dtype && divisor == 1.0f) {
      std::memcpy(to, from, static_cast<size_t>(p.head_dim * to_size));
    } else {
      ConvertRow({p.input_dtype, p.cache_dtype, from, to, p.head_dim, divisor});
    }
    from += p.head_dim * from_size;
    to += layout.head_stride * to_size;
  }
}

// The tokens whose slots fall to this task: runs of 16 slots in turn.
void WriteSlots(const Problem& p, const Buffers& b, int64_t task, int64_t tasks) {
  const int64_t num_slots = p.num_slots();
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t slot = p.slot_dtype == DType::kI32
                             ? static_cast<const int32_t*>(b.slot_mapping)[token]
                             : static_cast<const int64_t*>(b.slot_mapping)[token];
    if (slot < 0 || slot >= num_slots || slot / 16 % tasks != task) continue;
    const int64_t of_slot = slot * p.kv_heads;
    WriteToken(p, b.key, token, b.k_scale + (p.k_token_scales ? of_slot : 0),
               p.k_scale_size == 1 ? 0 : 1, b.k_cache_out, p.k, slot);
    WriteToken(p, b.value, token, b.v_scale + (p.v_token_scales ? of_slot : 0),
               p.v_scale_size == 1 ? 0 : 1, b.v_cache_out, p.v, slot);
  }
}

}  // namespace

void UpdateCacheOnHost(const Problem& problem, const Buffers& b, ThreadPool& pool) {
  CopyCache(b.k_cache_in, b.k_cache_out, b.cache_bytes, pool);
  if (problem.separate_v) CopyCache(b.v_cache_in, b.v_cache_out, b.cache_bytes, pool);
  const int64_t tasks = std::clamp(problem.tokens / kMinTokensPerTask, int64_t{1}, kMaxTasks);
  pool.ParallelFor(tasks, [&](int64_t task) { WriteSlots(problem, b, task, tasks); });
}

}  // namespace update_kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheHostPlan(const Call& call, int device_ordinal) {
  using namespace update_kv_cache;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return MakePlan([problem](const Call& call, const ExecutionContext& context) {
    UpdateCacheOnHost(problem, BuffersFromCall(problem, call), *context.thread_pool);
    return OkStatus();
  });
}

}  // namespace xla_gpu
