#include "src/xla/compat/own_error.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace xla_gpu::xla {
namespace {

std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// Guarded by Mutex().
std::map<const void*, std::unique_ptr<Status>>& Errors() {
  static auto* errors = new std::map<const void*, std::unique_ptr<Status>>;
  return *errors;
}

// So that the errors of the wrapped plugin pass without a lock where there are none of ours.
std::atomic<int> count{0};

}  // namespace

PJRT_Error* MakeOwnError(Status status) {
  if (status.ok()) return nullptr;
  auto own = std::make_unique<Status>(std::move(status));
  auto* error = reinterpret_cast<PJRT_Error*>(own.get());
  std::lock_guard<std::mutex> lock(Mutex());
  Errors().emplace(error, std::move(own));
  ++count;
  return error;
}

const Status* FindOwnError(const PJRT_Error* error) {
  if (count.load() == 0) return nullptr;
  std::lock_guard<std::mutex> lock(Mutex());
  const auto found = Errors().find(error);
  return found == Errors().end() ? nullptr : found->second.get();
}

bool FreeOwnError(PJRT_Error* error) {
  if (count.load() == 0) return false;
  std::lock_guard<std::mutex> lock(Mutex());
  if (Errors().erase(error) == 0) return false;
  --count;
  return true;
}

}  // namespace xla_gpu::xla
