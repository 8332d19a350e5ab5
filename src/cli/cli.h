// The program `xla-gpu`: one file a command, which enters a list at load time.
#ifndef XLA_GPU_CLI_CLI_H_
#define XLA_GPU_CLI_CLI_H_

#include <optional>
#include <string>
#include <vector>

#include "src/cli/options.h"
#include "src/core/status.h"

namespace xla_gpu::cli {

class Invocation;

struct Command {
  const char* name;     // "doctor", "cache list"
  const char* summary;  // one line
  const char* example;  // what follows "xla-gpu "
  // Returns the process's exit code: 0 done, 1 the answer is no or the work failed, 2 wrong usage.
  int (*run)(const Invocation& invocation);
};

struct CommandRegistration {
  explicit CommandRegistration(const Command& command);
};

// A command with the arguments that came after its name.
class Invocation {
 public:
  Invocation(const Command& command, Args args) : command_(command), args_(std::move(args)) {}

  // Fills the options. The exit code if that is all: help was asked for, or the usage is wrong.
  std::optional<int> Parse(const std::vector<Option>& options) const;

  // Print "xla-gpu COMMAND: MESSAGE" to stderr and return the exit code.
  int Fail(const Status& status) const;
  int WrongUsage(const std::string& message) const;

 private:
  const Command& command_;
  Args args_;
};

int Main(int argc, char** argv);

}  // namespace xla_gpu::cli

// At namespace scope in the command's file: name, summary, example, function.
#define XLA_GPU_CLI_COMMAND(...)                                                \
  static const ::xla_gpu::cli::CommandRegistration XLA_GPU_CONCAT(cli_command_, \
                                                                  __LINE__)({__VA_ARGS__})

#endif  // XLA_GPU_CLI_CLI_H_
