#include "src/xla/op_registration.h"

#include <set>
#include <string>
#include <utility>

#include "src/core/op_registry.h"
#include "src/xla/handlers.h"
#include "src/xla/mlir_text.h"
#include "src/xla/registration.h"

namespace xla_gpu::xla {
namespace {

constexpr int kTyped = 4;

Status RegisterOp(const PjrtPlugin& plugin, const Op& op, int api_version) {
  const Platform platform = plugin.is_gpu() ? Platform::kCuda : Platform::kHost;
  // XLA treats an unspecified version as the original one.
  const int version = api_version == 0 ? 1 : api_version;
  XLA_GPU_ASSIGN_OR_RETURN(const void* handler, HandlerAddress(op, platform, version));
  return Register(plugin, {op.target, StagesOf(handler, version),
                           std::string(PlatformName(platform)), version});
}

}  // namespace

Status RegisterOpsOf(const PjrtPlugin& plugin, std::string_view mlir) {
  if (IsMlirBytecode(mlir)) return RegisterAllOps(plugin);
  std::set<std::pair<std::string, int>> seen;
  for (const MlirCustomCall& call : FindMlirCustomCalls(mlir)) {
    const Op* op = OpRegistry::Global().Find(call.target);
    // Other targets are XLA's own or the user's; so is one that is an op's mere name.
    if (op == nullptr || op->target != call.target) continue;
    if (!seen.emplace(call.target, call.api_version).second) continue;
    XLA_GPU_RETURN_IF_ERROR(RegisterOp(plugin, *op, call.api_version));
  }
  return OkStatus();
}

Status RegisterAllOps(const PjrtPlugin& plugin) {
  for (const auto& op : OpRegistry::Global().ops()) {
    XLA_GPU_RETURN_IF_ERROR(RegisterOp(plugin, *op, kTyped));
  }
  return OkStatus();
}

}  // namespace xla_gpu::xla
