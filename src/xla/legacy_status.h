// How a failed legacy call tells its error.
//
// Versions 2 and 3 pass an XlaCustomCallStatus*, version 1 passes nothing. The status is a C++
// struct inside the runtime (an optional string, whose layout differs between runtimes: jaxlib
// 0.4.38 has the strings of GCC 4, later ones those of libc++), so only the runtime's own function
// XlaCustomCallStatusSetFailure may write it, and one module's function must never be handed
// another's status. We therefore call it only where the very module that called us exports it.
// Neither jaxlib (0.4.38 to 0.12) nor the stock CUDA plugins do.
//
// Everywhere else the error goes to stderr, each text once, and the results become NaN (zeros where
// the dtype has no NaN): the program goes on, but not with a wrong number that looks right. What
// can be checked before the call is: xla_gpu_opaque and xla_gpu_alias refuse a call that would fail
// here.
#ifndef XLA_GPU_XLA_LEGACY_STATUS_H_
#define XLA_GPU_XLA_LEGACY_STATUS_H_

#include "src/core/op.h"

namespace xla_gpu::xla {

// void XlaCustomCallStatusSetFailure(XlaCustomCallStatus* status, const char* message, size_t size)
using SetFailureFn = void (*)(void* status, const char* message, size_t size);

// The setter that the module around `address` (code of the runtime) exports; null if it has none.
SetFailureFn FindSetFailure(const void* address);

// Where a legacy call came from and where its error may go.
struct LegacyCaller {
  void* stream = nullptr;                // CUDA: the call's CUstream
  void* status = nullptr;                // XlaCustomCallStatus*; null in version 1
  const void* return_address = nullptr;  // in the runtime
};

// `results`: what the call should have written, with data; empty if that is not known.
void ReportFailure(const Status& error, Platform platform, std::span<const TensorView> results,
                   const LegacyCaller& caller) noexcept;

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_LEGACY_STATUS_H_
