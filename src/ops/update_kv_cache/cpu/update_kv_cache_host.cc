// update_kv_cache on the Host.
#include <algorithm>
#include <cstring>

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
  pool.ParallelFor((bytes + kCopyBytes - 1) / kCopyBytes, [=](int64_t i) {
    const int64_t begin = i * kCopyBytes;
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(std::min(kCopyBytes, bytes - begin)));
  });
}

class Writer {
 public:
  explicit Writer(const Problem& problem) : p_(problem) {}

  void Run(const Buffers& b, ThreadPool& pool) const {
    CopyCache(b.k_cache_in, b.k_cache_out, b.cache_bytes, pool);
    if (p_.cache.separate_v) CopyCache(b.v_cache_in, b.v_cache_out, b.cache_bytes, pool);
    const int64_t tasks = std::clamp(p_.tokens / kMinTokensPerTask, int64_t{1}, kMaxTasks);
    pool.ParallelFor(tasks, [&](int64_t task) { WriteSlots(b, task, tasks); });
  }

 private:
  int64_t Slot(const Buffers& b, int64_t token) const {
    return p_.slot_dtype == DType::kI32 ? static_cast<const int32_t*>(b.slot_mapping)[token]
                                        : static_cast<const int64_t*>(b.slot_mapping)[token];
  }

  // The tokens whose slots fall to this task: runs of 16 slots in turn.
  void WriteSlots(const Buffers& b, int64_t task, int64_t tasks) const {
    const int64_t num_slots = p_.num_slots();
    for (int64_t token = 0; token < p_.tokens; ++token) {
      const int64_t slot = Slot(b, token);
      if (slot < 0 || slot >= num_slots || slot / 16 % tasks != task) continue;
      WriteToken(b.key, token, b.k_scale, p_.k_scale_size, b.k_cache_out, p_.cache.k, slot);
      WriteToken(b.value, token, b.v_scale, p_.v_scale_size, b.v_cache_out, p_.cache.v, slot);
    }
  }

  void WriteToken(const void* input, int64_t token, const float* scale, int64_t scale_size,
                  void* cache, const paged_cache::CacheLayout& layout, int64_t slot) const {
    const paged_cache::CacheShape& c = p_.cache;
    const int64_t from_size = DTypeSize(p_.input_dtype);
    const int64_t to_size = DTypeSize(c.dtype);
    const char* from =
        static_cast<const char*>(input) + token * c.kv_heads * c.head_dim * from_size;
    char* to =
        static_cast<char*>(cache) + (layout.offset + slot / c.page_size * layout.page_stride +
                                     slot % c.page_size * layout.token_stride) *
                                        to_size;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const float divisor = scale_size == 0 ? 1.0f : scale[scale_size == 1 ? 0 : head];
      if (c.dtype == p_.input_dtype && divisor == 1.0f) {
        std::memcpy(to, from, static_cast<size_t>(c.head_dim * to_size));
      } else {
        ConvertRow({p_.input_dtype, c.dtype, from, to, c.head_dim, divisor});
      }
      from += c.head_dim * from_size;
      to += layout.head_stride * to_size;
    }
  }

  const Problem& p_;
};

class HostPlan final : public Plan {
 public:
  explicit HostPlan(const Problem& problem) : problem_(problem) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    UpdateCacheOnHost(problem_, BuffersFromCall(problem_, call), *context.thread_pool);
    return OkStatus();
  }

 private:
  const Problem problem_;
};

}  // namespace

void UpdateCacheOnHost(const Problem& problem, const Buffers& buffers, ThreadPool& pool) {
  Writer(problem).Run(buffers, pool);
}

}  // namespace update_kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheHostPlan(const Call& call, int device_ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(auto problem, update_kv_cache::ProblemFromCall(call));
  return std::unique_ptr<Plan>(std::make_unique<update_kv_cache::HostPlan>(problem));
}

}  // namespace xla_gpu
