#include "src/core/op_registry.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "src/core/log.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "xla_gpu: %s\n", message.c_str());
  std::abort();
}

// NAME@DIGEST of NAME@DIGEST+DIGEST.
std::string_view WithoutIncludes(std::string_view key) {
  return key.substr(0, key.find('+', std::min(key.size(), key.rfind('@'))));
}

std::atomic<CurrentDeviceFn> current_device_fns[kNumPlatforms] = {};

}  // namespace

OpRegistry& OpRegistry::Global() {
  static OpRegistry* registry = new OpRegistry;
  return *registry;
}

OpRegistry::~OpRegistry() {
  for (auto& bucket : defined_) {
    const Defined* at = bucket.load();
    while (at != nullptr) delete std::exchange(at, at->next);
  }
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
    if (!attr.environment.empty()) attr.default_value = IsSwitchedOn(attr.environment.c_str());
  }
  ops_.push_back(std::make_unique<const Op>(std::move(op)));
}

const Op* OpRegistry::Find(std::string_view name_or_target) const {
  for (const auto& op : ops_) {
    if (op->name == name_or_target || op->target == name_or_target) return op.get();
  }
  if (const Op* op = FindDefined(name_or_target)) return op;
  for (const auto& bucket : defined_) {
    for (const Defined* at = bucket.load(); at != nullptr; at = at->next) {
      if (at->op.target == name_or_target) return &at->op;
    }
  }
  return nullptr;
}

StatusOr<const Op*> OpRegistry::Get(std::string_view name_or_target) const {
  if (const Op* op = Find(name_or_target)) return op;
  return NotFound("no op is named '", name_or_target,
                  "'; known are: ", StrJoin(ops_, ", ", [](const auto& op) { return op->name; }));
}

size_t OpRegistry::SlotOf(const Op& op) const {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].get() == &op) return i;
  }
  return kMaxOps;
}

size_t OpRegistry::BucketOf(std::string_view key) {
  return std::hash<std::string_view>{}(key) % kBuckets;
}

const Op* OpRegistry::FindDefined(std::string_view key) const {
  const auto& bucket = defined_[BucketOf(key)];
  for (const Defined* at = bucket.load(std::memory_order_acquire); at != nullptr; at = at->next) {
    if (at->op.key == key) return &at->op;
  }
  return nullptr;
}

StatusOr<const Op*> OpRegistry::Define(std::string_view definition) {
  if (definer_ == nullptr) return Unimplemented("this library defines no ops at run time");
  XLA_GPU_ASSIGN_OR_RETURN(Op op, definer_(definition));
  for (const auto& own : ops_) {
    if (own->name != op.target && own->target != op.target) continue;
    return InvalidArgument(op.name, ": this library has an op of this name; choose another");
  }
  std::atomic<const Defined*>& bucket = defined_[BucketOf(op.key)];
  auto made = std::make_unique<Defined>(Defined{std::move(op), bucket.load()});
  for (;;) {
    if (const Op* known = FindDefined(made->op.key)) return known;
    // Nothing was added since made->next was read, or this fails and reads it again.
    if (bucket.compare_exchange_strong(made->next, made.get(), std::memory_order_acq_rel)) {
      return &made.release()->op;
    }
  }
}

StatusOr<const Op*> OpRegistry::OpOfCall(const Attributes& attributes) {
  const std::string_view key = attributes.GetString(kKernelAttribute);
  if (const Op* op = FindDefined(key)) return op;
  const std::string_view definition = attributes.GetString(kDefinitionAttribute);
  if (!definition.empty()) {
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Define(definition));
    // Files that its sources include may be others here than where the program was exported.
    if (key.empty() || WithoutIncludes(op->key) == WithoutIncludes(key)) return op;
    return InvalidArgument("the call's kernel is '", key, "' but its definition is that of '",
                           op->key, "'");
  }
  return NotFound("the call's kernel is '", key,
                  "', which this process does not know: define it before the program is compiled, "
                  "or export the program with its kernels (docs/your-kernel.md)");
}

void SetCurrentDeviceFn(Platform platform, CurrentDeviceFn fn) {
  current_device_fns[static_cast<int>(platform)].store(fn);
}

int CurrentDevice(Platform platform) {
  CurrentDeviceFn fn = current_device_fns[static_cast<int>(platform)].load();
  return fn == nullptr ? 0 : fn();
}

}  // namespace xla_gpu
