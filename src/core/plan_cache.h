// PlanCache: the plan of every problem met so far, so that a call pays for checking, choosing and
// compiling once. A look-up allocates nothing.
#ifndef XLA_GPU_CORE_PLAN_CACHE_H_
#define XLA_GPU_CORE_PLAN_CACHE_H_

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "src/core/op.h"

namespace xla_gpu {

class PlanCache {
 public:
  // More problems than a server meets; past it the cache starts anew (kernels stay cached in their
  // own layer, so a plan made again costs microseconds).
  static constexpr size_t kMaxPlans = 8192;

  static PlanCache& Global();

  // The plan for this call's types and attributes on the current device of `platform`; checks the
  // call and makes the plan when it is new. Errors are not cached.
  StatusOr<std::shared_ptr<const Plan>> GetOrCreate(const Op& op, Platform platform,
                                                    const Call& call);

  size_t size() const;
  void Clear();

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Plan>, Hash, std::equal_to<>> plans_;
};

// Whether a tensor starts where its elements, of a known dtype, may lie.
inline bool IsAligned(const TensorView& tensor) {
  const auto size = static_cast<uintptr_t>(DTypeSize(tensor.dtype));  // a power of 2
  return (reinterpret_cast<uintptr_t>(tensor.data) & (size - 1)) == 0;
}

// Plan::Run of a plan of `op`, on the Host with the default thread pool where `context` names none.
Status RunPlan(const Op& op, const Plan& plan, Platform platform, const Call& call,
               ExecutionContext context);

// CheckCall and the plan on a miss, a check of the data pointers, then RunPlan: what every door
// calls. Throws nothing.
Status RunOp(const Op& op, Platform platform, const Call& call, const ExecutionContext& context);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_PLAN_CACHE_H_
