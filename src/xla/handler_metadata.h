// Questions to a single handler, asked the way XLA asks them: which FFI version, which traits.
#ifndef XLA_GPU_XLA_HANDLER_METADATA_H_
#define XLA_GPU_XLA_HANDLER_METADATA_H_

#include <optional>

#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

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
