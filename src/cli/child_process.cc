#include "src/cli/child_process.h"

#include <chrono>
#include <filesystem>
#include <string_view>

namespace xla_gpu::cli {
namespace {

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kMaxOut = 8 << 20;

}  // namespace

StatusOr<ChildResult> RunLines(const std::vector<std::string>& command, int timeout_s,
                               const std::function<bool(const std::string&)>& on_line) {
  std::string line;  // at most one byte too long, which tells that it is left out
  const auto on_out = [&](std::string_view bytes) {
    bool progress = false;
    while (!bytes.empty()) {
      const std::string_view part = bytes.substr(0, bytes.find('\n'));
      line += part.substr(0, kMaxLine + 1 - line.size());
      bytes.remove_prefix(part.size());
      if (bytes.empty()) break;
      bytes.remove_prefix(1);
      if (line.size() <= kMaxLine) progress |= on_line(line);
      line.clear();
    }
    return progress;
  };
  return RunChild(command, /*input=*/"",
                  ChildLimits{.timeout = std::chrono::seconds(timeout_s),
                              .max_out = kMaxOut,
                              .on_out = on_out,
                              .same_group = true});
}

std::string SelfPath() {
  std::error_code error;
  return std::filesystem::canonical("/proc/self/exe", error).string();
}

}  // namespace xla_gpu::cli
