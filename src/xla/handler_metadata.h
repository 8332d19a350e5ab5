// Questions to a single handler, asked the way XLA asks them: which FFI version, which traits.
#ifndef XLA_GPU_XLA_HANDLER_METADATA_H_
#define XLA_GPU_XLA_HANDLER_METADATA_H_

#include "src/core/status.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

// A typed handler that runs nothing; when a runtime asks its metadata (at registration), it notes
// the FFI version that the runtime shows of itself.
const void* VersionProbeHandler();

struct VersionProbeResult {
  bool api_shown = false;
  Version version;
};

// While it lives, the probe handler notes what it sees on this thread in `result`.
class VersionProbeScope {
 public:
  explicit VersionProbeScope(VersionProbeResult* result);
  ~VersionProbeScope();
  VersionProbeScope(const VersionProbeScope&) = delete;
  VersionProbeScope& operator=(const VersionProbeScope&) = delete;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_HANDLER_METADATA_H_
