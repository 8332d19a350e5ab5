#include "src/core/op_registry.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "xla_gpu: %s\n", message.c_str());
  std::abort();
}

std::atomic<CurrentDeviceFn> current_device_fns[kNumPlatforms] = {};

}  // namespace

OpRegistry& OpRegistry::Global() {
  static OpRegistry* registry = new OpRegistry;
  return *registry;
}

void OpRegistry::Register(Op op) {
  if (Find(op.name) != nullptr || Find(op.target) != nullptr) {
    Die(StrCat("op ", op.name, " (target ", op.target, ") is registered twice"));
  }
  if (op.infer == nullptr) Die(StrCat("op ", op.name, " has no infer function"));
  if (ops_.size() == kMaxOps) Die(StrCat("op ", op.name, " is one too many (kMaxOps)"));
  // One more, for optional_args.
  if (op.attrs.size() >= Attributes::kMaxAttributes) Die(StrCat("op ", op.name, ": attributes"));
  for (AttrSpec& attr : op.attrs) {
    if (attr.environment.empty()) continue;
    const char* value = std::getenv(attr.environment.c_str());
    attr.default_value = value != nullptr && std::string_view(value) == "1";
  }
  ops_.push_back(std::make_unique<const Op>(std::move(op)));
}

const Op* OpRegistry::Find(std::string_view name_or_target) const {
  for (const auto& op : ops_) {
    if (op->name == name_or_target || op->target == name_or_target) return op.get();
  }
  return nullptr;
}

StatusOr<const Op*> OpRegistry::Get(std::string_view name_or_target) const {
  if (const Op* op = Find(name_or_target)) return op;
  return NotFound("no op is named '", name_or_target,
                  "'; known are: ", StrJoin(ops_, ", ", [](const auto& op) { return op->name; }));
}

int OpRegistry::SlotOf(const Op& op) const {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].get() == &op) return static_cast<int>(i);
  }
  Die(StrCat("op ", op.name, " is not registered"));
}

void SetCurrentDeviceFn(Platform platform, CurrentDeviceFn fn) {
  current_device_fns[static_cast<int>(platform)].store(fn);
}

int CurrentDevice(Platform platform) {
  CurrentDeviceFn fn = current_device_fns[static_cast<int>(platform)].load();
  return fn == nullptr ? 0 : fn();
}

}  // namespace xla_gpu
