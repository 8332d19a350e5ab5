#include "src/xla/compat/own_error.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "src/core/fork.h"

namespace xla_gpu::xla {
namespace {

ForkSafeMutex mutex;
auto& errors = *new std::map<const void*, std::unique_ptr<Status>>;  // guarded by mutex

// So that the errors of the wrapped plugin pass without a lock where there are none of ours.
std::atomic<int> count{0};

}  // namespace

PJRT_Error* MakeOwnError(Status status) {
  if (status.ok()) return nullptr;
  auto own = std::make_unique<Status>(std::move(status));
  auto* error = reinterpret_cast<PJRT_Error*>(own.get());
  std::lock_guard lock(mutex);
  errors.emplace(error, std::move(own));
  ++count;
  return error;
}

const Status* FindOwnError(const PJRT_Error* error) {
  if (count.load() == 0) return nullptr;
  std::lock_guard lock(mutex);
  const auto found = errors.find(error);
  return found == errors.end() ? nullptr : found->second.get();
}

bool FreeOwnError(PJRT_Error* error) {
  if (count.load() == 0) return false;
  std::lock_guard lock(mutex);
  if (errors.erase(error) == 0) return false;
  --count;
  return true;
}

}  // namespace xla_gpu::xla
