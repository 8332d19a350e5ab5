// OpRegistry: where doors find ops. The library's own enter when it is loaded
// (XLA_GPU_REGISTER_OP), kernels of the user's when they are defined.
#ifndef XLA_GPU_CORE_OP_REGISTRY_H_
#define XLA_GPU_CORE_OP_REGISTRY_H_

#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "src/core/op.h"

namespace xla_gpu {

class OpRegistry {
 public:
  // Adapters hold one static handler for each slot, so the number of ops has a bound.
  static constexpr int kMaxOps = 64;

  static OpRegistry& Global();  // lives as long as the process

  OpRegistry() = default;
  OpRegistry(const OpRegistry&) = delete;
  OpRegistry& operator=(const OpRegistry&) = delete;
  ~OpRegistry();

  // Aborts on a duplicate name, an op without `infer`, or more than kMaxOps ops: errors of ours.
  void Register(Op op);

  // By name or custom-call target, ops that are defined at run time by key or target (which several
  // may share: one of them). Null if unknown.
  const Op* Find(std::string_view name_or_target) const;
  // As Find, with an error that lists the known ops.
  StatusOr<const Op*> Get(std::string_view name_or_target) const;

  const std::vector<std::unique_ptr<const Op>>& ops() const { return ops_; }
  // The position of a registered op in ops(): its handler slot; kMaxOps for all others, whose calls
  // name their op by an attribute.
  size_t SlotOf(const Op& op) const;

  // The op of a definition, which is a text of the definer's: made now if it is new. Any thread may
  // define ops; a child of fork() has those of its parent. They are never removed.
  StatusOr<const Op*> Define(std::string_view definition);
  // As Find, of ops that are defined at run time alone, by key. Takes no lock.
  const Op* FindDefined(std::string_view key) const;
  // The op of a call of one: by the attribute `kernel`, else by its `definition`.
  StatusOr<const Op*> OpOfCall(const Attributes& attributes);

  // What makes an op of a definition; a layer above installs it when the library is loaded.
  using Definer = StatusOr<Op> (*)(std::string_view definition);
  void SetDefiner(Definer definer) { definer_ = definer; }

 private:
  // A hash table that only grows: readers need no lock.
  struct Defined {
    const Op op;
    const Defined* next;
  };
  static constexpr size_t kBuckets = 512;
  static size_t BucketOf(std::string_view key);

  std::vector<std::unique_ptr<const Op>> ops_;
  Definer definer_ = nullptr;
  std::array<std::atomic<const Defined*>, kBuckets> defined_{};
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
