// What the commands that run StableHLO modules share: reading the file, opening a plugin, the
// user's handlers, XLA's dump.
#ifndef XLA_GPU_CLI_PROGRAM_H_
#define XLA_GPU_CLI_PROGRAM_H_

#include <string>
#include <vector>

#include "src/cli/cli.h"
#include "src/core/status.h"
#include "src/xla/hlo_text.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::cli {

// Prints "xla-gpu COMMAND: MESSAGE" to stderr and returns the exit code: 2 for wrong usage
// (INVALID_ARGUMENT of `usage_error`), else 1.
int Fail(const char* command, const Status& status);
int FailUsage(const char* command, const std::string& message);

StatusOr<std::string> ReadTextFile(const std::string& path);

// Keeps XLA's information and warning lines off the terminal, unless TF_CPP_MIN_LOG_LEVEL is set.
void QuietXla();

// Loads the plugin that `name` means (ChoosePjrtPlugin).
StatusOr<const xla::PjrtPlugin*> OpenPlugin(const std::string& name);

// NAME=LIBRARY.so:SYMBOL[:API_VERSION]: a handler of the user's.
Status RegisterUserHandler(const xla::PjrtPlugin& plugin, const std::string& text);

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
