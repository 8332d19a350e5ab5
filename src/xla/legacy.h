// The legacy door (custom-call API versions 1, 2 and 3): one generic handler for every op.
//
//   version  CUDA                                             Host
//   1        (stream, buffers, opaque, opaque_len)            (out, in)
//   2        (stream, buffers, opaque, opaque_len, status)    (out, in, status)
//   3        as 2                                             (out, in, opaque, opaque_len, status)
//
// `buffers` holds the arguments, then the results. `out` is the result's buffer, or with more or
// fewer results than one (a tuple) an array of them. XLA reads nothing from `opaque`; it holds the
// call as JSON (src/xla/opaque.h). Host versions 1 and 2 carry none: see src/xla/alias.h.
#ifndef XLA_GPU_XLA_LEGACY_H_
#define XLA_GPU_XLA_LEGACY_H_

#include <memory>

#include "src/core/op.h"
#include "src/xla/legacy_status.h"
#include "src/xla/opaque.h"

namespace xla_gpu::xla {

// What one opaque text says, ready to run. Immutable; views point into `call`.
struct LegacySite {
  OpaqueCall call;
  const Op* op = nullptr;
  Attributes attributes;
  std::vector<TensorView> args;  // without data
  std::vector<TensorView> results;

  Call AsCall() const { return Call{args, results, &attributes}; }
};

// Decodes `opaque` and finds its op; does not check the call against the op.
StatusOr<std::unique_ptr<const LegacySite>> MakeLegacySite(std::string_view opaque);

// The pointers of one call, as the platform's signature passes them.
struct LegacyBuffers {
  void* const* buffers = nullptr;   // CUDA
  void* out = nullptr;              // Host
  const void* const* in = nullptr;  // Host
};

// Runs the call; errors go to ReportFailure, nothing is thrown.
void RunLegacySite(const LegacySite& site, Platform platform, const LegacyBuffers& buffers,
                   const LegacyCaller& caller);

// The handler of `op`: Host version 3, CUDA versions 1, 2 and 3. Valid for the life of the process.
StatusOr<void*> LegacyHandler(const Op& op, Platform platform, int api_version);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_LEGACY_H_
