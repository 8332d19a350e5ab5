// The address of an op's handler for one platform and custom-call API version.
#ifndef XLA_GPU_XLA_HANDLERS_H_
#define XLA_GPU_XLA_HANDLERS_H_

#include "src/core/op.h"

namespace xla_gpu::xla {

// api_version 1, 2, 3: the legacy calls (not Host 1 and 2: alias.h); 4: typed FFI.
StatusOr<void*> HandlerAddress(const Op& op, Platform platform, int api_version);

// Whether the function is one of these, or an alias that is bound.
bool IsOwnHandler(const void* handler, Platform platform, int api_version);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_HANDLERS_H_
