// The options of one command: a table from which its arguments are read and its help is made.
#ifndef XLA_GPU_CLI_OPTIONS_H_
#define XLA_GPU_CLI_OPTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::cli {

using Args = std::vector<std::string>;

struct Option {
  const char* name;   // "--plugin", "-I", or an argument by its place: "FILE.mlir"
  const char* value;  // what the help writes for its value: "PATH|cpu|cuda"
  // Filled by the arguments; what it holds before is the default. A flag takes no value, a vector
  // may come again, a text by its place must come.
  std::variant<bool*, int64_t*, std::string*, std::vector<int64_t>*, std::vector<std::string>*>
      target;
  const char* help;  // empty: not shown, as it is for the children that this program starts
  std::vector<std::string> allowed = {};  // values; empty: any
  int64_t min = 1;                        // of numbers
  int64_t max = 1 << 24;
};

// Takes --name value, --name=value, -Ivalue and -I value. An error names what is unknown, missing
// or wrong.
Status ParseOptions(const Args& args, const std::vector<Option>& options);

// " FILE.mlir [OPTIONS]", and a line for each option with its default, an empty one last.
std::string UsageText(const std::vector<Option>& options);
std::string HelpText(const std::vector<Option>& options);

// "; did you mean X?" where one of the candidates is much like the word, else empty.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_OPTIONS_H_
