// update_kv_cache on the Host.
#include <algorithm>
#include <cstring>

#include "src/core/float_types.h"
#include "src/ops/kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace kv_cache {
namespace {

class HostPlan final : public Plan {
 public:
  explicit HostPlan(const UpdateProblem& problem) : p_(problem) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    const UpdateBuffers b = UpdateBuffersFromCall(p_, call);
    Copy(b.k_cache_in, b.k_cache_out, b.cache_bytes);
    if (p_.cache.separate_v) Copy(b.v_cache_in, b.v_cache_out, b.cache_bytes);
    for (int64_t token = 0; token < p_.tokens; ++token) {
      const int64_t slot = p_.slot_dtype == DType::kI32
                               ? static_cast<const int32_t*>(b.slot_mapping)[token]
                               : static_cast<const int64_t*>(b.slot_mapping)[token];
      if (slot < 0 || slot >= p_.num_slots()) continue;
      Write(b.key, token, b.k_scale, p_.k_scale_size, b.k_cache_out, p_.cache.k, slot);
      Write(b.value, token, b.v_scale, p_.v_scale_size, b.v_cache_out, p_.cache.v, slot);
    }
    return OkStatus();
  }

 private:
  // An empty cache may come with null pointers, which memcpy must not see.
  static void Copy(const void* from, void* to, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  void Write(const void* input, int64_t token, const float* scale, int64_t scale_size, void* cache,
             const paged_attention::CacheLayout& layout, int64_t slot) const {
    const CacheShape& c = p_.cache;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const float divisor = scale_size == 0 ? 1.0f : scale[scale_size == 1 ? 0 : head];
      const int64_t from = (token * c.kv_heads + head) * c.head_dim;
      const int64_t to = layout.offset + slot / c.page_size * layout.page_stride +
                         slot % c.page_size * layout.token_stride + head * layout.head_stride;
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const float x = static_cast<float>(LoadAsDouble(input, p_.input_dtype, from + d));
        StoreFromDouble(cache, c.dtype, to + d, x / divisor);
      }
    }
  }

  const UpdateProblem p_;
};

}  // namespace
}  // namespace kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheHostPlan(const Call& call, int device_ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(auto problem, kv_cache::UpdateProblemFromCall(call));
  return std::unique_ptr<Plan>(std::make_unique<kv_cache::HostPlan>(problem));
}

}  // namespace xla_gpu
