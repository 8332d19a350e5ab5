// Questions to a single handler, asked the way XLA asks them: which FFI version, which traits.
#ifndef XLA_GPU_XLA_HANDLER_METADATA_H_
#define XLA_GPU_XLA_HANDLER_METADATA_H_

#include <optional>
#include <string>

#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

// How this process may use the memory at an address: "rw-", "r-x" (code), ...; nothing where
// there is none, "rwx" where the system does not tell.
std::string AccessTo(const void* address);

// A typed handler that runs nothing; when a runtime asks its metadata (at registration), it notes
// the FFI version that the runtime shows of itself.
const void* VersionProbeHandler();

// While it lives, the probe handler notes here what it is shown on this thread.
class VersionProbeScope {
 public:
  VersionProbeScope();
  ~VersionProbeScope();
  VersionProbeScope(const VersionProbeScope&) = delete;
  VersionProbeScope& operator=(const VersionProbeScope&) = delete;

  std::optional<Version> seen;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_HANDLER_METADATA_H_
