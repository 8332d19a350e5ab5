// The program `xla-gpu`: one file a command, each with one function of this signature.
#ifndef XLA_GPU_CLI_CLI_H_
#define XLA_GPU_CLI_CLI_H_

#include <string>
#include <vector>

namespace xla_gpu::cli {

using Args = std::vector<std::string>;

// What a command returns is the process's exit code: 0 done, 1 the answer is no or the work failed,
// 2 wrong usage.
struct Command {
  const char* name;
  const char* usage;    // "doctor [--json]"
  const char* summary;  // one line for `xla-gpu help`
  int (*run)(const Args& args);
};

// Commands enter a list at load time: XLA_GPU_CLI_COMMAND at namespace scope in the command's file.
struct CommandRegistration {
  explicit CommandRegistration(const Command& command);
};

int Main(int argc, char** argv);

}  // namespace xla_gpu::cli

#define XLA_GPU_CLI_COMMAND(name, usage, summary, run)                       \
  static const ::xla_gpu::cli::CommandRegistration cli_command_registration( \
      {name, usage, summary, run})

#endif  // XLA_GPU_CLI_CLI_H_
