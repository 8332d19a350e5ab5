// How long calls take, by op, while a profile is on: every door's calls, since all run by RunPlan.
// On the Host it is the time of Plan::Run; on a GPU that between a mark in the stream in front of
// the call's launches and one behind them.
#ifndef XLA_GPU_CORE_PROFILE_H_
#define XLA_GPU_CORE_PROFILE_H_

#include <atomic>
#include <string>

#include "src/core/op.h"

namespace xla_gpu {

namespace internal {
extern std::atomic<bool> profiles;
}  // namespace internal

// Whether a profile is on: all that calls pay for when none is.
inline bool Profiles() { return internal::profiles.load(std::memory_order_relaxed); }

// Begins the process's one profile; FAILED_PRECONDITION where one is on.
Status StartProfile();

// Ends it, waits for the calls that it has seen, and returns what they took, the longest total
// first:
// [{"name":"saxpy","key":"saxpy@6b3c0e9ad1f24711","platform":"CUDA","calls":3,"timed":2,
//   "total_us":9.5,"min_us":4.5,"max_us":5.0}, ...]
// Calls that failed are left out. Not timed, though counted, are calls on a stream that was being
// captured into a graph (whose replays are not seen) and those on a GPU after kMaxMarkedCalls.
// FAILED_PRECONDITION where no profile is on.
StatusOr<std::string> StopProfile();

// What a profile keeps events for until it ends: to ask for those that are through sooner would
// break other threads' captures.
inline constexpr size_t kMaxMarkedCalls = 65536;

// Plan::Run, timed.
Status RunProfiled(const Op& op, const Plan& plan, Platform platform, const Call& call,
                   const ExecutionContext& context);

// Marks in the work of a stream, of a platform whose calls only enqueue. The CUDA layer installs
// its own.
struct StreamMarks {
  // Null where the stream is being captured, or there can be none.
  void* (*record)(void* stream);
  // Waits for both marks; the microseconds from one to the other.
  StatusOr<double> (*microseconds)(void* begin, void* end);
  void (*release)(void* mark);  // null is fine
};
void SetStreamMarks(Platform platform, const StreamMarks& marks);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_PROFILE_H_
