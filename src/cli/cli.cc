#include "src/cli/cli.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

// By name: the order of registration is the linker's.
std::vector<Command>& Commands() {
  static auto* commands = new std::vector<Command>;
  return *commands;
}

// The commands whose names begin with `group`: "cache ", or "" for all.
void List(FILE* out, const std::string& group) {
  std::fprintf(out, "usage: xla-gpu %sCOMMAND [ARGUMENTS]\n\n", group.c_str());
  for (const Command& command : Commands()) {
    const std::string name = command.name;
    if (!name.starts_with(group)) continue;
    std::fprintf(out, "  %-12s  %s\n", command.name, command.summary);
  }
  std::fprintf(out, "\nxla-gpu %sCOMMAND --help shows a command's options and an example.\n",
               group.c_str());
}

bool AsksForHelp(const std::string& arg) { return arg == "--help" || arg == "-h"; }

int Dispatch(Args all) {
  if (all == Args{"--version"}) {
    std::printf("xla-gpu %s\n", XLA_GPU_VERSION);
    return 0;
  }
  if (!all.empty() && all[0] == "help") {
    all.erase(all.begin());
    all.emplace_back("--help");
  }
  std::string group;
  for (const Command& command : Commands()) {
    if (all.empty() || !std::string(command.name).starts_with(all[0] + ' ')) continue;
    group = all[0] + ' ';
    all.erase(all.begin());
    break;
  }
  if (all.empty() || AsksForHelp(all[0])) {
    List(all.empty() ? stderr : stdout, group);
    return all.empty() ? 2 : 0;
  }
  const std::string name = group + all[0];
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    if (name == command.name) {
      return command.run(Invocation(command, Args(all.begin() + 1, all.end())));
    }
    names.emplace_back(command.name);
  }
  std::fprintf(stderr, "xla-gpu: no command is named '%s'%s\nxla-gpu help lists them.\n",
               name.c_str(), DidYouMean(name, names).c_str());
  return 2;
}

}  // namespace

CommandRegistration::CommandRegistration(const Command& command) {
  Commands().push_back(command);
  std::ranges::sort(Commands(), {}, [](const Command& c) { return std::string_view(c.name); });
}

std::optional<int> Invocation::Parse(const std::vector<Option>& options) const {
  if (std::ranges::any_of(args_, AsksForHelp)) {
    std::printf("usage: xla-gpu %s%s\n\n%s\n\n%sexample: xla-gpu %s\n", command_.name,
                UsageText(options).c_str(), command_.summary, HelpText(options).c_str(),
                command_.example);
    return 0;
  }
  const Status status = ParseOptions(args_, options);
  return status.ok() ? std::nullopt : std::optional(WrongUsage(status.message()));
}

int Invocation::Fail(const Status& status) const {
  std::fprintf(stderr, "xla-gpu %s: %s\n", command_.name, status.ToString().c_str());
  return 1;
}

int Invocation::WrongUsage(const std::string& message) const {
  std::fprintf(stderr, "xla-gpu %s: %s\nxla-gpu %s --help shows its arguments.\n", command_.name,
               message.c_str(), command_.name);
  return 2;
}

int Main(int argc, char** argv) {
  // XLA's information and warning lines stay off the terminal, unless the user wants them.
  setenv("TF_CPP_MIN_LOG_LEVEL", "2", /*overwrite=*/0);
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
