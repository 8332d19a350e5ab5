// Running the real program in tests.
#ifndef XLA_GPU_CLI_PROGRAM_TESTING_H_
#define XLA_GPU_CLI_PROGRAM_TESTING_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "src/cli/child_process.h"

namespace xla_gpu::cli {

struct Output {
  int code = -1;
  std::string out;
  std::string err;
};

// A command, to its end; being killed, by a crash or for taking too long, is a failure.
inline Output RunToEnd(const std::vector<std::string>& command, int timeout_s = 120) {
  Output output;
  const auto end = RunLines(command, timeout_s, [&](const std::string& line) {
    output.out += line + "\n";
    return false;
  });
  EXPECT_TRUE(end.ok()) << end.status().ToString();
  if (!end.ok()) return output;
  EXPECT_GE(end->exit_code, 0) << end->HowItEnded() << "\n" << end->err;
  output.code = end->exit_code;
  output.err = end->err;
  return output;
}

inline std::string ProgramPath() {
  const char* program = std::getenv("XLA_GPU_PROGRAM");  // ctest sets it
  return program == nullptr ? "xla-gpu" : program;
}

inline Output Program(std::vector<std::string> args, int timeout_s = 120) {
  args.insert(args.begin(), ProgramPath());
  return RunToEnd(args, timeout_s);
}

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PROGRAM_TESTING_H_
