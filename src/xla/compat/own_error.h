// PJRT errors made by the compatibility plugin itself. To a framework they are PJRT_Error*, like
// those of the wrapped plugin, whose layout only that plugin knows; so ours are told by address.
#ifndef XLA_GPU_XLA_COMPAT_OWN_ERROR_H_
#define XLA_GPU_XLA_COMPAT_OWN_ERROR_H_

#include "src/core/status.h"

struct PJRT_Error;

namespace xla_gpu::xla {

// Lives until FreeOwnError. Null for an OK status.
PJRT_Error* MakeOwnError(Status status);

// The status behind an error of ours; null for one of the wrapped plugin.
const Status* FindOwnError(const PJRT_Error* error);

// False if the error is not ours.
bool FreeOwnError(PJRT_Error* error);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_COMPAT_OWN_ERROR_H_
