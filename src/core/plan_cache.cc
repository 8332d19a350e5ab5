#include "src/core/plan_cache.h"

#include <exception>
#include <mutex>

#include "src/core/fork.h"
#include "src/core/op_registry.h"
#include "src/core/profile.h"

namespace xla_gpu {
namespace {

template <typename T>
void Append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendBytes(std::string& key, std::string_view bytes) {
  Append(key, bytes.size());
  key.append(bytes);
}

void AppendTensors(std::string& key, std::span<const TensorView> tensors) {
  Append(key, tensors.size());
  for (const TensorView& tensor : tensors) {
    Append(key, tensor.dtype);
    Append(key, tensor.shape.size());
    key.append(reinterpret_cast<const char*>(tensor.shape.data()), tensor.shape.size_bytes());
  }
}

void AppendAttributes(std::string& key, const Attributes& attributes) {
  for (const Attribute& attribute : attributes.all()) {
    AppendBytes(key, attribute.name);
    Append(key, attribute.value.index());
    std::visit(
        [&key](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, std::string_view>) {
            AppendBytes(key, value);
          } else if constexpr (std::is_same_v<T, std::span<const int64_t>>) {
            AppendBytes(key, {reinterpret_cast<const char*>(value.data()), value.size_bytes()});
          } else {
            Append(key, value);
          }
        },
        attribute.value);
  }
}

// The call's types and attributes as bytes, written into `key`, whose capacity is reused.
void WriteKey(const Op& op, Platform platform, int device, const Call& call, std::string& key) {
  key.clear();
  Append(key, &op);
  Append(key, platform);
  Append(key, device);
  AppendTensors(key, call.args);
  AppendTensors(key, call.results);
  AppendAttributes(key, *call.attributes);
}

// Empty tensors may have no memory; every other one needs an address to run, one that its elements
// may have. The plan's check of the types comes first: it makes the sizes safe to compute.
Status CheckData(const Op& op, std::string_view kind, std::span<const TensorView> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data == nullptr && tensors[i].num_elements() != 0) {
      return InvalidArgument(op.name, ": ", kind, " ", i, " (", tensors[i].ToString(),
                             ") has a null data pointer");
    }
    if (!IsAligned(tensors[i]) && tensors[i].num_elements() != 0) {
      return InvalidArgument(op.name, ": ", kind, " ", i, " (", tensors[i].ToString(),
                             ") lies at address ", tensors[i].data,
                             ", no multiple of its element size; give it an aligned copy");
    }
  }
  return OkStatus();
}

constinit PerProcess<PlanCache> global;

}  // namespace

PlanCache& PlanCache::Global() { return global.Get(); }

StatusOr<std::shared_ptr<const Plan>> PlanCache::GetOrCreate(const Op& op, Platform platform,
                                                             const Call& call) {
  static thread_local std::string key;
  const int device = CurrentDevice(platform);
  WriteKey(op, platform, device, call, key);
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = plans_.find(std::string_view(key));
    if (found != plans_.end()) return found->second;
  }
  const PlanFactory& make_plan = op.make_plan[static_cast<int>(platform)];
  if (make_plan == nullptr) {
    return Unimplemented(op.name, ": there is no kernel for platform ", PlatformName(platform));
  }
  XLA_GPU_RETURN_IF_ERROR(CheckCall(op, platform, call));
  const Attributes attributes = CompleteAttributes(op, *call.attributes);
  XLA_GPU_ASSIGN_OR_RETURN(std::unique_ptr<Plan> made,
                           make_plan({call.args, call.results, &attributes}, device));
  // The factory may have run other calls in this thread, so the key is written again.
  WriteKey(op, platform, device, call, key);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.try_emplace(key, std::shared_ptr<const Plan>(std::move(made))).first->second;
}

size_t PlanCache::size() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return plans_.size();
}

void PlanCache::Clear() {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  plans_.clear();
}

Status RunPlan(const Op& op, const Plan& plan, Platform platform, const Call& call,
               ExecutionContext context) {
  if (platform == Platform::kHost && context.thread_pool == nullptr) {
    context.thread_pool = &DefaultThreadPool();
  }
  if (Profiles()) [[unlikely]]
    return RunProfiled(op, plan, platform, call, context);
  return plan.Run(call, context);
}

Status RunOp(const Op& op, Platform platform, const Call& call,
             const ExecutionContext& context) try {
  XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                           PlanCache::Global().GetOrCreate(op, platform, call));
  XLA_GPU_RETURN_IF_ERROR(CheckData(op, "argument", call.args));
  XLA_GPU_RETURN_IF_ERROR(CheckData(op, "result", call.results));
  XLA_GPU_RETURN_IF_ERROR(CheckOverlap(op, call));
  return RunPlan(op, *plan, platform, call, context);
} catch (const std::exception&) {
  return StatusFromException(op.name);
} catch (...) {
  return Internal(op.name, ": the function threw what is no std::exception");
}

}  // namespace xla_gpu
