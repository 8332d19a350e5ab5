// Status and StatusOr: the one error type of the project.
//
// A message names the op, the argument, what came, what is allowed and the remedy. Codes are the
// canonical absl/gRPC codes, so that every door (XLA FFI, PJRT, Python) passes them on unchanged.
#ifndef XLA_GPU_CORE_STATUS_H_
#define XLA_GPU_CORE_STATUS_H_

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu {

enum class StatusCode : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// "INVALID_ARGUMENT" and so on.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  // The message may quote what came from outside: bytes that are no UTF-8 become U+FFFD.
  Status(StatusCode code, std::string message);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // This error with more before its message.
  template <typename... Parts>
  Status After(const Parts&... parts) const {
    return Status(code_, StrCat(parts..., message_));
  }
  // "INVALID_ARGUMENT: simple_add: ...", or "OK".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
// Errors whose message is the parts joined (StrCat).
#define XLA_GPU_DEFINE_ERROR(Name)                        \
  template <typename... Parts>                            \
  Status Name(const Parts&... parts) {                    \
    return Status(StatusCode::k##Name, StrCat(parts...)); \
  }
XLA_GPU_DEFINE_ERROR(InvalidArgument)
XLA_GPU_DEFINE_ERROR(NotFound)
XLA_GPU_DEFINE_ERROR(FailedPrecondition)
XLA_GPU_DEFINE_ERROR(Unimplemented)
XLA_GPU_DEFINE_ERROR(Internal)
XLA_GPU_DEFINE_ERROR(Unavailable)
XLA_GPU_DEFINE_ERROR(ResourceExhausted)
#undef XLA_GPU_DEFINE_ERROR

// The exception that is being handled (a std::exception) as a Status, for where nothing may be
// thrown. `who`, an op's name or nothing, begins the message. It does without memory if it must.
Status StatusFromException(std::string_view who) noexcept;

// A value or the error that stands in its place.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: implicit like absl::StatusOr
    if (status_.ok()) std::abort();                       // an OK status carries no value
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT: implicit like absl::StatusOr

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace xla_gpu

#define XLA_GPU_RETURN_IF_ERROR(expr)                                  \
  do {                                                                 \
    if (::xla_gpu::Status status_macro = (expr); !status_macro.ok()) { \
      return status_macro;                                             \
    }                                                                  \
  } while (false)

#define XLA_GPU_CONCAT_INNER(a, b) a##b
#define XLA_GPU_CONCAT(a, b) XLA_GPU_CONCAT_INNER(a, b)
#define XLA_GPU_ASSIGN_OR_RETURN(lhs, expr) \
  XLA_GPU_ASSIGN_OR_RETURN_IMPL(XLA_GPU_CONCAT(status_or_, __LINE__), lhs, expr)
#define XLA_GPU_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = *std::move(tmp)

#endif  // XLA_GPU_CORE_STATUS_H_
