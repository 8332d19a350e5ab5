#include "src/cuda/unaligned_plan.h"

#include <cstdint>

#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {
namespace {

bool IsMultiple(const void* place, int64_t of) {
  return reinterpret_cast<uintptr_t>(place) % static_cast<uintptr_t>(of) == 0;
}

}  // namespace

Place FirstUnaligned(std::initializer_list<Place> tensors) {
  for (const Place& tensor : tensors) {
    if (!IsMultiple(tensor.address, 16)) return tensor;
  }
  return {};
}

Status CheckAligned(std::string_view op, std::initializer_list<Place> tensors) {
  const Place found = FirstUnaligned(tensors);
  if (!found) return OkStatus();
  return InvalidArgument(op, ": ", found.name, " lies at address ", found.address,
                         "; on CUDA it must be a multiple of 16");
}

Status UnalignedPlan::Run(const Place& why, const Call& call,
                          const ExecutionContext& context) const {
  for (const auto& [tensors, kind] :
       {std::pair{call.args, "argument "}, {call.results, "result "}}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (IsMultiple(tensors[i].data, DTypeSize(tensors[i].dtype))) continue;
      return InvalidArgument(op_, ": ", kind, i, ", ", tensors[i].ToString(), ", lies at address ",
                             tensors[i].data, ", no multiple of its element size");
    }
  }
  XLA_GPU_ASSIGN_OR_RETURN(const Plan* plan, GetPlan(why, context.stream));
  return plan->Run(call, context);
}

// Threads may make one each at the same time, of the same kernels; the first one stays. No lock,
// which a fork could leave locked.
StatusOr<const Plan*> UnalignedPlan::GetPlan(const Place& why, void* stream) const {
  const Plan* made = made_.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  const std::string what =
      StrCat(op_, ": ", why.name, " lies at address ", why.address, ", no multiple of 16");
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  if (IsCapturing(*driver, static_cast<CUstream>(stream))) {
    return FailedPrecondition(
        what,
        ", and the kernels for such tensors cannot be loaded while a graph is "
        "captured: call it once before the capture, or copy the slice");
  }
  LogInfo(StrCat(what, ": slower kernels are loaded for such tensors"));
  XLA_GPU_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, make_());
  if (made_.compare_exchange_strong(made, plan.get(), std::memory_order_acq_rel)) {
    return plan.release();
  }
  return made;
}

}  // namespace xla_gpu::cuda
