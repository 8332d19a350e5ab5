// What the commands that run StableHLO modules share: reading the file, opening a plugin, the
// user's handlers, XLA's dump.
#ifndef XLA_GPU_CLI_PROGRAM_H_
#define XLA_GPU_CLI_PROGRAM_H_

#include <memory>
#include <string>
#include <vector>

#include "src/cli/cli.h"
#include "src/core/op.h"
#include "src/core/status.h"
#include "src/xla/hlo_text.h"
#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {

// --plugin and --handler, in every command that has them.
Option PluginOption(std::string* plugin);
Option PluginsOption(std::vector<std::string>* plugins);
Option HandlerOption(std::vector<std::string>* handlers);

// By name or custom-call target; the error names the ops there are.
StatusOr<const Op*> FindOp(const std::string& name);

StatusOr<std::string> ReadModule(const std::string& path);

// Loads the plugin that `name` means (ChoosePjrtPlugin).
StatusOr<const xla::PjrtPlugin*> OpenPlugin(const std::string& name);

// A module compiled by a plugin that has the handlers the module may call.
struct CompiledModule {
  std::unique_ptr<xla::PjrtClient> client;
  xla::PjrtExecutable executable;
};

// `handlers`: NAME=LIBRARY.so:SYMBOL[:API_VERSION], the user's own; this library's are registered
// as the module calls them.
StatusOr<CompiledModule> Compile(const std::string& mlir, const std::string& plugin_name,
                                 const std::vector<std::string>& handlers);

// To XLA's error that it has no handler for a target, adds the targets that this library knows.
Status NameKnownTargets(const Status& status);

// XLA's own text of what it compiles while this object lives. XLA reads the request for it
// (XLA_FLAGS) when a plugin is loaded, so make one before. (The C API gives modules as protobufs
// only.)
class HloDump {
 public:
  HloDump();
  ~HloDump();
  HloDump(const HloDump&) = delete;
  HloDump& operator=(const HloDump&) = delete;

  StatusOr<std::vector<xla::HloModuleText>> Read() const;

 private:
  std::string folder_;
};

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PROGRAM_H_
