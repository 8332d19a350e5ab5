// Registering this library's own ops for the modules that call them.
#ifndef XLA_GPU_XLA_OP_REGISTRATION_H_
#define XLA_GPU_XLA_OP_REGISTRATION_H_

#include <string_view>

#include "src/core/status.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

// Registers our handler for each custom call in the module's text whose target is an op's, by the
// API version that the call names; for MLIR bytecode, whose calls cannot be read, every op as
// typed. The platform is the plugin's.
Status RegisterOpsOf(const PjrtPlugin& plugin, std::string_view mlir);

// Registers every op as typed, for the plugin's platform.
Status RegisterAllOps(const PjrtPlugin& plugin);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_OP_REGISTRATION_H_
