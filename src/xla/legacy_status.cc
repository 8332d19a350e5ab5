#include "src/xla/legacy_status.h"

#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_set>

#include "src/core/fill.h"
#include "src/core/fork.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kMaxReported = 256;

struct Reports {
  std::mutex mutex;
  std::unordered_set<size_t> hashes;  // of texts, which may be long
};
constinit PerProcess<Reports> reports;

// A model calls a failing site thousands of times a second; a log wants the text once.
void PrintOnce(const std::string& text) {
  auto& [mutex, hashes] = reports.Get();
  std::lock_guard<std::mutex> lock(mutex);
  if (hashes.size() >= kMaxReported || !hashes.insert(std::hash<std::string>{}(text)).second)
    return;
  std::fprintf(stderr, "xla_gpu: %s\n", text.c_str());
  if (hashes.size() == kMaxReported) {
    std::fprintf(stderr, "xla_gpu: further errors of legacy custom calls are not shown\n");
  }
}

}  // namespace

SetFailureFn FindSetFailure(const void* address) {
  constexpr const char* kSetter = "XlaCustomCallStatusSetFailure";
  Dl_info caller;
  if (dladdr(address, &caller) == 0 || caller.dli_fname == nullptr) return nullptr;
  void* symbol = nullptr;
  if (void* module = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
    symbol = dlsym(module, kSetter);
    dlclose(module);  // only gives back the reference that RTLD_NOLOAD took
  } else {
    symbol = dlsym(RTLD_DEFAULT, kSetter);  // the main program, whose name dlopen may not know
  }
  // dlsym also looks into what the module links to, which may be another runtime.
  Dl_info owner;
  if (symbol == nullptr || dladdr(symbol, &owner) == 0 || owner.dli_fbase != caller.dli_fbase) {
    return nullptr;
  }
  return reinterpret_cast<SetFailureFn>(symbol);
}

void ReportFailure(const Status& error, Platform platform, std::span<const TensorView> results,
                   const LegacyCaller& caller) noexcept {
  const SetFailureFn set_failure =
      caller.status == nullptr ? nullptr : FindSetFailure(caller.return_address);
  try {
    // Before the text is put together, for which memory may be missing.
    Status poisoned;
    if (set_failure == nullptr) poisoned = PoisonResults(platform, results, caller.stream);
    const std::string text = error.ToString();
    if (set_failure != nullptr) {
      set_failure(caller.status, text.data(), text.size());
      return;
    }
    const char* outcome = results.empty() ? "the results are undefined, as their types are unknown"
                                          : "the results are NaN (zeros if ints)";
    PrintOnce(poisoned.ok() ? StrCat(text, " [legacy custom call: ", outcome, "]")
                            : StrCat(text, " [legacy custom call: the results are undefined: ",
                                     poisoned.message(), "]"));
  } catch (const std::exception&) {
    const std::string text = StatusFromException("").message();
    if (set_failure != nullptr) {
      set_failure(caller.status, text.data(), text.size());
    } else {
      std::fprintf(stderr, "xla_gpu: a legacy custom call failed: %s\n", text.c_str());
    }
  }
}

}  // namespace xla_gpu::xla
