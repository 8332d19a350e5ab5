#include "src/xla/alias.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "src/core/fork.h"
#include "src/xla/legacy.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kNumAliasVersions = 2;

// What each trampoline is bound to: set once, before its address is given away, and never freed.
using Bindings = std::array<std::atomic<const LegacySite*>, kMaxAliases>;
std::array<Bindings, kNumAliasVersions> bindings;

const LegacySite& Bound(size_t version, size_t i) {
  return *bindings[version - 1][i].load(std::memory_order_acquire);
}

// The trampolines. They take the return address themselves: it tells the runtime that called.
template <size_t i>
void Original(void* out, const void** in) {
  RunLegacySite(Bound(1, i), Platform::kHost, {.out = out, .in = in},
                {.return_address = __builtin_return_address(0)});
}

template <size_t i>
void StatusReturning(void* out, const void** in, void* status) {
  RunLegacySite(Bound(2, i), Platform::kHost, {.out = out, .in = in},
                {.status = status, .return_address = __builtin_return_address(0)});
}

using Addresses = std::array<std::array<void*, kMaxAliases>, kNumAliasVersions>;

template <size_t... i>
Addresses MakeAddresses(std::index_sequence<i...>) {
  return Addresses{{{reinterpret_cast<void*>(&Original<i>)...},
                    {reinterpret_cast<void*>(&StatusReturning<i>)...}}};
}

// Which trampoline serves which call.
class AliasTable {
 public:
  StatusOr<void*> Bind(size_t version, std::unique_ptr<const LegacySite> site) {
    // Written anew, so that blanks and the op's two names make no difference.
    OpaqueCall canonical = site->call;
    canonical.op = site->op->id();
    XLA_GPU_ASSIGN_OR_RETURN(std::string key, EncodeOpaque(canonical));
    std::lock_guard lock(mutex_);
    auto& known = known_[version - 1];
    if (auto found = known.find(key); found != known.end()) {
      return addresses_[version - 1][found->second];
    }
    const size_t next = known.size();
    if (next == kMaxAliases) {
      return ResourceExhausted(
          site->op->name, ": all ", kMaxAliases,
          " aliases of this API version are taken, one for each set of shapes and "
          "attributes; use typed calls (API version 4), or fewer shapes");
    }
    bindings[version - 1][next].store(site.release(), std::memory_order_release);
    known.emplace(std::move(key), next);
    return addresses_[version - 1][next];
  }

  bool IsBound(size_t version, const void* handler) {
    std::lock_guard lock(mutex_);
    const auto& addresses = addresses_[version - 1];
    const auto end = addresses.begin() + static_cast<std::ptrdiff_t>(known_[version - 1].size());
    return std::find(addresses.begin(), end, handler) != end;
  }

 private:
  const Addresses addresses_ = MakeAddresses(std::make_index_sequence<kMaxAliases>{});
  ForkSafeMutex mutex_;
  std::array<std::unordered_map<std::string, size_t>, kNumAliasVersions> known_;
};
auto& aliases = *new AliasTable;

// The versions of which calls carry no opaque: 1 and 2 on the Host.
bool NeedsAlias(Platform platform, int api_version) {
  return platform == Platform::kHost && api_version >= 1 &&
         api_version <= static_cast<int>(kNumAliasVersions);
}

}  // namespace

StatusOr<void*> AliasHandler(const Op& op, Platform platform, int api_version,
                             std::string_view opaque) {
  if (!NeedsAlias(platform, api_version)) {
    return InvalidArgument(
        op.name, ": platform is ", PlatformName(platform), " and api_version is ", api_version,
        "; allowed are 1 and 2 on Host, whose calls carry no opaque: others take the op's own "
        "handler (xla_gpu_handler)");
  }
  auto site = MakeLegacySite(opaque);
  if (!site.ok()) return site.status().After(op.name, ": ");
  if ((*site)->op != &op) {
    return InvalidArgument(op.name, ": opaque names the op '", (*site)->op->name, "'; it must be ",
                           op.name);
  }
  // A legacy call cannot tell its errors well (legacy_status.h), so they are found here.
  if (op.make_plan[static_cast<int>(platform)] == nullptr) {
    return Unimplemented(op.name, ": there is no kernel for platform Host");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckCall(op, platform, (*site)->AsCall()));
  return aliases.Bind(static_cast<size_t>(api_version), *std::move(site));
}

bool IsAlias(const void* handler, Platform platform, int api_version) {
  return NeedsAlias(platform, api_version) &&
         aliases.IsBound(static_cast<size_t>(api_version), handler);
}

}  // namespace xla_gpu::xla
