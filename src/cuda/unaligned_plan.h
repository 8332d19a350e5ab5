// Tensors that start anywhere: most kernels move 16 bytes at a time, which takes tensors that start
// at multiples of 16. XLA's and whole tensors of PyTorch's do; slices need not.
#ifndef XLA_GPU_CUDA_UNALIGNED_PLAN_H_
#define XLA_GPU_CUDA_UNALIGNED_PLAN_H_

#include <atomic>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/op.h"
#include "src/core/status.h"

namespace xla_gpu::cuda {

// Where a tensor of a call lies, and its name in messages.
struct Place {
  const void* address = nullptr;
  const char* name = nullptr;
  explicit operator bool() const { return name != nullptr; }
};

// The first that does not start at a multiple of 16; none where all do.
Place FirstUnaligned(std::initializer_list<Place> tensors);

// An error of `op` if one of them does not. For work spaces, which callers allocate whole.
Status CheckAligned(std::string_view op, std::initializer_list<Place> tensors);

// What a plan holds besides its kernels: another plan of the same problem, whose kernels move
// single elements, for calls with tensors that start at multiples of their element size alone. The
// first such call makes it, which loads kernels: the only one that cannot be captured into a graph.
class UnalignedPlan {
 public:
  using Make = std::function<StatusOr<std::unique_ptr<Plan>>()>;
  UnalignedPlan(std::string_view op, Make make) : op_(op), make_(std::move(make)) {}
  ~UnalignedPlan() { delete made_.load(); }
  UnalignedPlan(const UnalignedPlan&) = delete;
  UnalignedPlan& operator=(const UnalignedPlan&) = delete;

  // `why`: the tensor that asks for it.
  Status Run(const Place& why, const Call& call, const ExecutionContext& context) const;

 private:
  StatusOr<const Plan*> GetPlan(const Place& why, void* stream) const;

  const std::string op_;
  const Make make_;
  mutable std::atomic<const Plan*> made_ = nullptr;
};

// Both plans in one. `make(unaligned)` makes either: the usual one, whose Run hands calls that have
// a FirstUnaligned to `unaligned`; and where that is null the one that takes any tensors.
template <typename MakeEither>
StatusOr<std::unique_ptr<Plan>> MakePlanOfAnyAlignment(std::string_view op, MakeEither make) {
  using Other = std::shared_ptr<const UnalignedPlan>;
  return make(std::make_shared<const UnalignedPlan>(op, [make] { return make(Other()); }));
}

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_UNALIGNED_PLAN_H_
