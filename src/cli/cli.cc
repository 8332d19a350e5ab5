#include "src/cli/cli.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

namespace xla_gpu::cli {
namespace {

std::vector<Command>& Commands() {
  static auto* commands = new std::vector<Command>;
  return *commands;
}

int Help(FILE* out) {
  std::fprintf(out, "usage: xla-gpu COMMAND [ARGUMENTS]\n\n");
  std::vector<Command> commands = Commands();
  std::ranges::sort(
      commands, [](const Command& a, const Command& b) { return std::string(a.name) < b.name; });
  for (const Command& command : commands) {
    std::fprintf(out, "  %-8s %s\n", command.name, command.summary);
  }
  std::fprintf(out, "\nxla-gpu COMMAND --help shows a command's arguments.\n");
  return out == stdout ? 0 : 2;
}

int Dispatch(const Args& all) {
  if (all.empty()) return Help(stderr);
  if (all[0] == "help" || all[0] == "--help" || all[0] == "-h") return Help(stdout);
  if (all[0] == "--version") {
    std::printf("xla-gpu %s\n", XLA_GPU_VERSION);
    return 0;
  }
  for (const Command& command : Commands()) {
    if (all[0] != command.name) continue;
    const Args args(all.begin() + 1, all.end());
    if (std::ranges::find(args, "--help") != args.end()) {
      std::printf("usage: xla-gpu %s\n\n%s\n", command.usage, command.summary);
      return 0;
    }
    return command.run(args);
  }
  std::fprintf(stderr, "xla-gpu: no command is named '%s'\n\n", all[0].c_str());
  return Help(stderr);
}

}  // namespace

CommandRegistration::CommandRegistration(const Command& command) { Commands().push_back(command); }

int Main(int argc, char** argv) {
  int code = 1;
  try {
    code = Dispatch(Args(argv + std::min(argc, 1), argv + argc));
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "xla-gpu: there is not enough memory for this input\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "xla-gpu: %s\n", error.what());
  }
  // What was printed is the result: a full disk must not look like success.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "xla-gpu: the output could not be written (is the disk full?)\n");
  return code == 0 ? 1 : code;
}

}  // namespace xla_gpu::cli
