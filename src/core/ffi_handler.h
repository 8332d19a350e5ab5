// An XLA FFI handler of the user's, as an op hands it to the layer that knows XLA's headers.
#ifndef XLA_GPU_CORE_FFI_HANDLER_H_
#define XLA_GPU_CORE_FFI_HANDLER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/op.h"

namespace xla_gpu {

struct FfiHandler {
  // The functions of instantiate, prepare, initialize and execute; null where there is none but for
  // execute.
  std::array<const void*, 4> stages = {};
  Platform platform = Platform::kHost;
  int device = 0;
  bool capture = false;  // whether calls may be recorded into CUDA graphs
  // What it gets as attributes: a scalar of `type`, in the lowest bytes of `bits`.
  struct Scalar {
    std::string name;
    DType type;
    uint64_t bits;
  };
  std::vector<Scalar> scalars;
  size_t num_args = 0, num_results = 0;
  // Of the type of the state that instantiate makes, its XLA_FFI_TypeId and XLA_FFI_TypeInfo; null
  // where not given. Handlers since FFI 0.2 need both.
  const void* type_id = nullptr;
  const void* type_info = nullptr;
};

// A plan that calls the handler with a call's arguments and results, scratch memory last. Errors
// where it is no typed handler, is of an FFI version that cannot be served, or fails to
// instantiate. The layer above installs it when the library is loaded.
using MakeFfiHandlerPlan = StatusOr<std::unique_ptr<Plan>>(FfiHandler handler);
inline MakeFfiHandlerPlan* make_ffi_handler_plan = nullptr;

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FFI_HANDLER_H_
