// OpRegistry: where doors find ops. Ops enter at library load (XLA_GPU_REGISTER_OP).
#ifndef XLA_GPU_CORE_OP_REGISTRY_H_
#define XLA_GPU_CORE_OP_REGISTRY_H_

#include <memory>
#include <string_view>
#include <vector>

#include "src/core/op.h"

namespace xla_gpu {

class OpRegistry {
 public:
  // Adapters hold one static handler for each slot, so the number of ops has a bound.
  static constexpr int kMaxOps = 64;

  static OpRegistry& Global();

  // Aborts on a duplicate name, an op without `infer`, or more than kMaxOps ops: errors of ours.
  void Register(Op op);

  // By op name or custom-call target; null if unknown.
  const Op* Find(std::string_view name_or_target) const;
  // As Find, with an error that lists the known ops.
  StatusOr<const Op*> Get(std::string_view name_or_target) const;

  const std::vector<std::unique_ptr<const Op>>& ops() const { return ops_; }
  // The position of a registered op in ops(): its handler slot.
  int SlotOf(const Op& op) const;

 private:
  std::vector<std::unique_ptr<const Op>> ops_;
};

struct OpRegistration {
  explicit OpRegistration(Op op) { OpRegistry::Global().Register(std::move(op)); }
};

// The device whose context is current in this thread; how a platform's calls find their device.
// The CUDA layer installs its own; without one, and on the Host, it is 0.
using CurrentDeviceFn = int (*)();
void SetCurrentDeviceFn(Platform platform, CurrentDeviceFn fn);
int CurrentDevice(Platform platform);

}  // namespace xla_gpu

// At namespace scope in the op's .cc file: XLA_GPU_REGISTER_OP(MakeOp());
#define XLA_GPU_REGISTER_OP(op) \
  static const ::xla_gpu::OpRegistration XLA_GPU_CONCAT(op_registration_, __LINE__)(op)

#endif  // XLA_GPU_CORE_OP_REGISTRY_H_
