// What the library says on stderr: XLA_GPU_LOG is "off", "warning" (the default) or "info".
#ifndef XLA_GPU_CORE_LOG_H_
#define XLA_GPU_CORE_LOG_H_

#include <chrono>
#include <string>

namespace xla_gpu {

enum class LogLevel { kOff, kWarning, kInfo };

// Read once a process. Anything else in XLA_GPU_LOG is kWarning, and a warning.
LogLevel GetLogLevel();
inline bool LogsInfo() { return GetLogLevel() == LogLevel::kInfo; }

// One line, written whole: "xla_gpu: MESSAGE". A message of several lines stays one call.
void LogInfo(const std::string& message);
void LogWarning(const std::string& message);
// Not again in this process.
void LogWarningOnce(const std::string& message);

// Whether the variable of the environment is 1. What is neither that, 0 nor empty is warned of.
bool IsSwitchedOn(const char* variable);

// "12.3 ms" since it was made.
class Stopwatch {
 public:
  std::string Text() const;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_LOG_H_
