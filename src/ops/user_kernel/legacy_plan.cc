// legacy: a function that was written as an XLA custom call of API version 1, 2 or 3
// (docs/how-custom-calls-work.md has the signatures), called with the call's arguments, then its
// results. Work space is not passed on, as such a function would not know it.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/strings.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/library.h"

namespace xla_gpu::user_kernel {
namespace {

// What versions 2 and 3 hand their function as an XlaCustomCallStatus*. It is a C++ struct of XLA's
// (an optional string) that only XLA's own function XlaCustomCallStatusSetFailure may write, and no
// runtime exports that one: a library that reports failures has a copy of it linked in, of a layout
// that its compiler chose. In every layout zeros are an empty optional, which setting a failure
// fills in without reading what was there, and the struct is smaller than this. So what is no
// longer zero says that the function failed; its text cannot be read.
struct alignas(64) StatusMemory {
  std::array<unsigned char, 256> bytes = {};

  bool is_failure() const {
    return std::ranges::any_of(bytes, [](unsigned char byte) { return byte != 0; });
  }
};

using CudaOriginal = void (*)(void* stream, void** buffers, const char* opaque, size_t size);
using CudaWithStatus = void (*)(void* stream, void** buffers, const char* opaque, size_t size,
                                void* status);
using HostOriginal = void (*)(void* out, const void** in);
using HostWithStatus = void (*)(void* out, const void** in, void* status);
using HostUnified = void (*)(void* out, const void** in, const char* opaque, size_t size,
                             void* status);

template <typename Function>
Function As(const void* address) {
  return reinterpret_cast<Function>(const_cast<void*>(address));
}

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeLegacyPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  const Implementation* const implementation =
      &*definition->implementations[static_cast<size_t>(platform)];
  const StatusOr<const void*> found = FunctionOf(*implementation, implementation->symbol);
  if (!found.ok()) return found.status().After(definition->name, ": ");
  return MakePlan([definition, implementation, platform, function = *found](
                      const Call& call, const ExecutionContext& context) -> Status {
    std::array<void*, 2 * kMaxTensors> buffers;
    const size_t num_results = definition->results.size();
    void** const results = std::ranges::transform(call.args, buffers.begin(), [](const auto& arg) {
                             return arg.data;
                           }).out;
    std::ranges::transform(call.results.first(num_results), results, &TensorView::data);
    const auto** in = const_cast<const void**>(buffers.data());
    void* const out = num_results == 1 ? *results : static_cast<void*>(results);
    const std::string& opaque = implementation->opaque;
    StatusMemory status;
    const bool on_cuda = platform == Platform::kCuda;
    switch (implementation->api_version) {
      case 1:
        if (on_cuda) {
          As<CudaOriginal>(function)(context.stream, buffers.data(), opaque.data(), opaque.size());
        } else {
          As<HostOriginal>(function)(out, in);
        }
        break;
      case 2:
        if (!on_cuda) {
          As<HostWithStatus>(function)(out, in, &status);
          break;
        }
        [[fallthrough]];
      default:
        if (on_cuda) {
          As<CudaWithStatus>(function)(context.stream, buffers.data(), opaque.data(), opaque.size(),
                                       &status);
        } else {
          As<HostUnified>(function)(out, in, opaque.data(), opaque.size(), &status);
        }
    }
    if (!status.is_failure()) return OkStatus();
    return Internal(
        "the function reported a failure by XlaCustomCallStatusSetFailure, whose text only the XLA "
        "that it was built with can read");
  });
}

}  // namespace xla_gpu::user_kernel
