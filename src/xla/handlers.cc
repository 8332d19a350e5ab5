#include "src/xla/handlers.h"

#include "src/core/op_registry.h"
#include "src/xla/alias.h"
#include "src/xla/legacy.h"
#include "src/xla/typed_ffi.h"

namespace xla_gpu::xla {

StatusOr<void*> HandlerAddress(const Op& op, Platform platform, int api_version) {
  switch (api_version) {
    case 1:
    case 2:
    case 3:
      return LegacyHandler(op, platform, api_version);
    case 4:
      return reinterpret_cast<void*>(TypedHandler(op, platform));
    default:
      return InvalidArgument("api_version is ", api_version,
                             "; allowed are 1, 2, 3 (legacy) and 4 (typed FFI)");
  }
}

bool IsOwnHandler(const void* handler, Platform platform, int api_version) {
  for (const auto& op : OpRegistry::Global().ops()) {
    const StatusOr<void*> own = HandlerAddress(*op, platform, api_version);
    if (own.ok() && *own == handler) return true;
  }
  for (const bool capturable : {false, true}) {
    const Op any{.key = "any", .capturable = capturable};  // ops defined at run time share handlers
    const StatusOr<void*> own = HandlerAddress(any, platform, api_version);
    if (own.ok() && *own == handler) return true;
  }
  return IsAlias(handler, platform, api_version);
}

}  // namespace xla_gpu::xla
