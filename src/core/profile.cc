#include "src/core/profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/core/fork.h"
#include "src/core/schema_json.h"
#include "src/core/strings.h"

namespace xla_gpu {

namespace internal {
constinit std::atomic<bool> profiles{false};
}  // namespace internal

namespace {

StreamMarks stream_marks[kNumPlatforms] = {};

// Of the calls of one op on one platform.
struct Times {
  void Add(double us) {
    min_us = timed == 0 ? us : std::min(min_us, us);
    max_us = std::max(max_us, us);
    total_us += us;
    ++timed;
  }

  int64_t calls = 0, timed = 0;
  double total_us = 0, min_us = 0, max_us = 0;
};

using Mark = std::unique_ptr<void, void (*)(void* mark)>;

// Null where there can be none.
Mark MarkStream(const StreamMarks& marks, void* stream) {
  return {marks.record == nullptr ? nullptr : marks.record(stream), marks.release};
}

struct MarkedCall {
  Times* times;
  const StreamMarks* marks;
  Mark begin, end;
};

struct Profile {
  std::mutex mutex;
  bool is_on = false;
  std::map<std::pair<const Op*, Platform>, Times> times;
  std::vector<MarkedCall> marked;
};
constinit PerProcess<Profile> profile;

std::string ToJson(const std::map<std::pair<const Op*, Platform>, Times>& times) {
  std::vector<std::pair<std::pair<const Op*, Platform>, Times>> rows(times.begin(), times.end());
  std::ranges::stable_sort(rows, std::ranges::greater{},
                           [](const auto& row) { return row.second.total_us; });
  const auto text = [](const auto& row) {
    const auto& [op, platform] = row.first;
    const Times& t = row.second;
    const auto value = [](const auto& v) { return ValueToJson(AttrValue(v)); };
    return StrCat(R"({"name":)", value(std::string_view(op->name)), R"(,"key":)",
                  value(std::string_view(op->id())), R"(,"platform":")", PlatformName(platform),
                  R"(","calls":)", t.calls, R"(,"timed":)", t.timed, R"(,"total_us":)",
                  value(t.total_us), R"(,"min_us":)", value(t.min_us), R"(,"max_us":)",
                  value(t.max_us), '}');
  };
  return StrCat('[', StrJoin(rows, ",", text), ']');
}

}  // namespace

Status StartProfile() {
  Profile& current = profile.Get();
  std::lock_guard<std::mutex> lock(current.mutex);
  if (current.is_on) {
    return FailedPrecondition("a profile is on already; there is one at a time in a process");
  }
  current.is_on = true;
  internal::profiles.store(true);
  return OkStatus();
}

StatusOr<std::string> StopProfile() {
  Profile& current = profile.Get();
  std::map<std::pair<const Op*, Platform>, Times> times;
  std::vector<MarkedCall> marked;
  {
    std::lock_guard<std::mutex> lock(current.mutex);
    if (!current.is_on) return FailedPrecondition("no profile is on");
    internal::profiles.store(false);
    current.is_on = false;
    times.swap(current.times);  // which leaves `marked` pointing into it
    marked.swap(current.marked);
  }
  for (const MarkedCall& call : marked) {
    XLA_GPU_ASSIGN_OR_RETURN(const double us,
                             call.marks->microseconds(call.begin.get(), call.end.get()));
    call.times->Add(us);
  }
  return ToJson(times);
}

void SetStreamMarks(Platform platform, const StreamMarks& marks) {
  stream_marks[static_cast<int>(platform)] = marks;
}

Status RunProfiled(const Op& op, const Plan& plan, Platform platform, const Call& call,
                   const ExecutionContext& context) {
  using Clock = std::chrono::steady_clock;
  const StreamMarks& marks = stream_marks[static_cast<int>(platform)];
  Mark begin = MarkStream(marks, context.stream);
  const Clock::time_point start = Clock::now();
  XLA_GPU_RETURN_IF_ERROR(plan.Run(call, context));
  const std::chrono::duration<double, std::micro> passed = Clock::now() - start;
  Mark end(nullptr, marks.release);
  if (begin != nullptr) end = MarkStream(marks, context.stream);
  Profile& current = profile.Get();
  std::lock_guard<std::mutex> lock(current.mutex);
  if (!current.is_on) return OkStatus();  // it ended meanwhile, or is another process's
  Times& times = current.times[{&op, platform}];
  ++times.calls;
  if (platform == Platform::kHost) {
    times.Add(passed.count());
  } else if (end != nullptr && current.marked.size() < kMaxMarkedCalls) {
    current.marked.push_back({&times, &marks, std::move(begin), std::move(end)});
  }
  return OkStatus();
}

}  // namespace xla_gpu
