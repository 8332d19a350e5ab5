// The typed-FFI door (custom-call API version 4): one generic handler for every op and platform.
//
// XLA passes an XLA_FFI_CallFrame with typed buffers and an attribute dictionary. The frame is read
// through the C API of FFI 0.1 (jaxlib 0.7.2's c_api.h), so that one library serves every runtime.
#ifndef XLA_GPU_XLA_TYPED_FFI_H_
#define XLA_GPU_XLA_TYPED_FFI_H_

#include "src/core/op.h"
#include "xla/ffi/api/c_api.h"

namespace xla_gpu::xla {

// The handler of `op` on `platform`. It serves all stages: pass it as `instantiate` and `execute`
// of a bundle (and as nothing else). Valid for the life of the process.
XLA_FFI_Handler* TypedHandler(const Op& op, Platform platform);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_TYPED_FFI_H_
