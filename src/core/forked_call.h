// Calling a function that may crash, exit or hang: in a child that fork() makes, for a bounded
// time.
#ifndef XLA_GPU_CORE_FORKED_CALL_H_
#define XLA_GPU_CORE_FORKED_CALL_H_

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>

#include "src/core/child.h"
#include "src/core/status.h"

namespace xla_gpu {

// Runs `body` in a forked child, on `answer`: `size` bytes of the caller's, which are as the child
// left them if `body` returned (the result is true) and untouched otherwise. The child has neither
// the host's files nor its signal handlers, leaves no core file, and lives no longer than `limit`
// or the calling thread. Other threads do not exist there and may hold locks: `body` does little.
// The error is that of making the child.
StatusOr<bool> RunForked(const std::function<void(void* answer)>& body, void* answer, size_t size,
                         std::chrono::milliseconds limit, ChildEnd& end);

template <typename Answer>
struct ForkedAnswer {
  std::optional<Answer> answer;  // none if the call did not return
  ChildEnd end;
};

// What `call` returns in a forked child.
template <typename Answer>
StatusOr<ForkedAnswer<Answer>> CallForked(const std::function<Answer()>& call,
                                          std::chrono::milliseconds limit) {
  static_assert(std::is_trivially_copyable_v<Answer>, "it crosses processes as bytes");
  Answer answer{};
  ForkedAnswer<Answer> result;
  const auto body = [&call](void* out) { *static_cast<Answer*>(out) = call(); };
  XLA_GPU_ASSIGN_OR_RETURN(const bool returned,
                           RunForked(body, &answer, sizeof(answer), limit, result.end));
  if (returned) result.answer = answer;
  return result;
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FORKED_CALL_H_
