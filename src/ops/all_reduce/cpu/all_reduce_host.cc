// all_reduce on the Host, which is one device.
#include <cstring>

#include "src/core/strings.h"
#include "src/ops/all_reduce/all_reduce.h"

namespace xla_gpu {

StatusOr<std::unique_ptr<Plan>> MakeAllReduceHostPlan(const Call& call, int device_ordinal) {
  if (const size_t devices = all_reduce::DevicesOf(call).size(); devices > 1) {
    return Unimplemented("all_reduce: attribute 'devices' has ", devices,
                         ", and the call runs on the Host; several devices must be GPUs, on others "
                         "use the framework's own (jax.lax.psum)");
  }
  return MakePlan([](const Call& call, const ExecutionContext& context) {
    const auto bytes = static_cast<size_t>(call.args[0].size_bytes());
    if (bytes > 0) std::memmove(call.results[0].data, call.args[0].data, bytes);
    return OkStatus();
  });
}

}  // namespace xla_gpu
