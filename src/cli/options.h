// Command-line options of one command: --name value, --name=value, flags, and what is left.
#ifndef XLA_GPU_CLI_OPTIONS_H_
#define XLA_GPU_CLI_OPTIONS_H_

#include <string>
#include <vector>

#include "src/cli/cli.h"
#include "src/core/status.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {

struct OptionSpec {
  const char* name;                            // "--plugin"
  std::vector<std::string>* values = nullptr;  // takes a value, may come again
  std::string* value = nullptr;                // takes a value, once
  bool* flag = nullptr;                        // takes none
};

// Fills the options and returns the arguments that are none; an error names what is unknown or
// lacks its value.
inline StatusOr<std::vector<std::string>> ParseOptions(const Args& args,
                                                       const std::vector<OptionSpec>& specs) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("--")) {
      rest.push_back(args[i]);
      continue;
    }
    const size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const OptionSpec* spec = nullptr;
    for (const OptionSpec& candidate : specs) {
      if (name == candidate.name) spec = &candidate;
    }
    if (spec == nullptr) return InvalidArgument(StrCat("option ", name, " is unknown"));
    if (spec->flag != nullptr) {
      if (equals != std::string::npos) return InvalidArgument(StrCat(name, " takes no value"));
      *spec->flag = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 == args.size()) {
      return InvalidArgument(StrCat(name, " needs a value"));
    }
    const std::string value = equals == std::string::npos ? args[++i] : args[i].substr(equals + 1);
    if (spec->values != nullptr) {
      spec->values->push_back(value);
    } else {
      *spec->value = value;
    }
  }
  return rest;
}

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_OPTIONS_H_
