#include "src/core/status.h"

#include <exception>
#include <iterator>
#include <new>

namespace xla_gpu {

std::string_view StatusCodeName(StatusCode code) {
  static constexpr std::string_view kNames[] = {"OK",
                                                "CANCELLED",
                                                "UNKNOWN",
                                                "INVALID_ARGUMENT",
                                                "DEADLINE_EXCEEDED",
                                                "NOT_FOUND",
                                                "ALREADY_EXISTS",
                                                "PERMISSION_DENIED",
                                                "RESOURCE_EXHAUSTED",
                                                "FAILED_PRECONDITION",
                                                "ABORTED",
                                                "OUT_OF_RANGE",
                                                "UNIMPLEMENTED",
                                                "INTERNAL",
                                                "UNAVAILABLE",
                                                "DATA_LOSS",
                                                "UNAUTHENTICATED"};
  const auto number = static_cast<size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

Status::Status(StatusCode code, std::string message)
    : code_(code), message_(ValidUtf8(std::move(message))) {}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

Status StatusFromException(std::string_view who) noexcept {
  try {
    const std::string_view separator = who.empty() ? "" : ": ";
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return ResourceExhausted(who, separator,
                               "out of memory on the host: an allocation failed; free "
                               "memory, or raise the limit of this process (ulimit -v)");
    } catch (const std::exception& e) {
      return Internal(who, separator, e.what());
    }
  } catch (const std::exception&) {
    // Short enough for std::string to allocate nothing.
    return Status(StatusCode::kResourceExhausted, "out of memory");
  }
}

}  // namespace xla_gpu
