#include "src/core/log.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string_view>

#include "src/core/file.h"
#include "src/core/fork.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace {

// By one write, so that the lines of threads and processes do not mix.
void Print(const std::string& message) {
  const std::string line = StrCat("xla_gpu: ", message, "\n");
  (void)WriteAll(STDERR_FILENO, line);
}

struct Settings {
  LogLevel level = LogLevel::kWarning;
  Settings() {
    const std::string text = Env("XLA_GPU_LOG");
    if (text == "off") level = LogLevel::kOff;
    if (text == "info") level = LogLevel::kInfo;
    if (text.empty() || text == "warning" || level != LogLevel::kWarning) return;
    Print(StrCat("warning: XLA_GPU_LOG is '", text, "'; it must be off, warning or info"));
  }
};
constinit PerProcess<Settings> settings;

struct Said {
  std::mutex mutex;
  std::set<std::string> messages;
};
constinit PerProcess<Said> warned;

}  // namespace

LogLevel GetLogLevel() { return settings.Get().level; }

void LogInfo(const std::string& message) {
  if (LogsInfo()) Print(message);
}

void LogWarning(const std::string& message) {
  if (GetLogLevel() != LogLevel::kOff) Print(StrCat("warning: ", message));
}

void LogWarningOnce(const std::string& message) {
  auto& [mutex, messages] = warned.Get();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!messages.insert(message).second) return;
  }
  LogWarning(message);
}

bool IsSwitchedOn(const char* variable) {
  const std::string text = Env(variable);
  if (!text.empty() && text != "0" && text != "1") {
    LogWarningOnce(StrCat(variable, " is '", text, "'; it must be 1 or 0, and is taken for 0"));
  }
  return text == "1";
}

std::string Stopwatch::Text() const {
  const std::chrono::duration<double, std::milli> passed =
      std::chrono::steady_clock::now() - start_;
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", passed.count());
  return text;
}

}  // namespace xla_gpu
