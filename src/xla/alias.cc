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
#include "src/core/strings.h"
#include "src/xla/legacy.h"
#include "src/xla/typed_ffi.h"

namespace xla_gpu::xla {
namespace {

// The signatures that an alias can have. CUDA versions 2 and 3 share one.
enum Signature : size_t {
  kCudaOriginal,
  kCudaStatusReturning,
  kHostOriginal,
  kHostStatusReturning,
  kHostUnified,
  kCudaTyped,
  kHostTyped,
  kNumSignatures
};

Signature SignatureOf(Platform platform, int api_version) {
  const bool cuda = platform == Platform::kCuda;
  switch (api_version) {
    case 1:
      return cuda ? kCudaOriginal : kHostOriginal;
    case 2:
      return cuda ? kCudaStatusReturning : kHostStatusReturning;
    case 3:
      return cuda ? kCudaStatusReturning : kHostUnified;
    default:
      return cuda ? kCudaTyped : kHostTyped;
  }
}

// What each trampoline is bound to: set once, before its address is given away, and never freed.
using Bindings = std::array<std::atomic<const LegacySite*>, kMaxAliases>;
std::array<Bindings, kNumSignatures> bindings;

const LegacySite& Bound(Signature signature, size_t i) {
  return *bindings[signature][i].load(std::memory_order_acquire);
}

// The trampolines. They take the return address themselves: it tells the runtime that called.
template <size_t i>
struct Trampoline {
  static void CudaOriginal(void* stream, void** buffers, const char*, size_t) {
    RunLegacySite(Bound(kCudaOriginal, i), Platform::kCuda, {.buffers = buffers},
                  {.stream = stream, .return_address = __builtin_return_address(0)});
  }
  static void CudaStatusReturning(void* stream, void** buffers, const char*, size_t, void* status) {
    RunLegacySite(
        Bound(kCudaStatusReturning, i), Platform::kCuda, {.buffers = buffers},
        {.stream = stream, .status = status, .return_address = __builtin_return_address(0)});
  }
  static void HostOriginal(void* out, const void** in) {
    RunLegacySite(Bound(kHostOriginal, i), Platform::kHost, {.out = out, .in = in},
                  {.return_address = __builtin_return_address(0)});
  }
  static void HostStatusReturning(void* out, const void** in, void* status) {
    RunLegacySite(Bound(kHostStatusReturning, i), Platform::kHost, {.out = out, .in = in},
                  {.status = status, .return_address = __builtin_return_address(0)});
  }
  static void HostUnified(void* out, const void** in, const char*, size_t, void* status) {
    RunLegacySite(Bound(kHostUnified, i), Platform::kHost, {.out = out, .in = in},
                  {.status = status, .return_address = __builtin_return_address(0)});
  }
  static XLA_FFI_Error* CudaTyped(XLA_FFI_CallFrame* frame) {
    const LegacySite& site = Bound(kCudaTyped, i);
    return HandleTypedCall(*site.op, Platform::kCuda, frame, &site.attributes);
  }
  static XLA_FFI_Error* HostTyped(XLA_FFI_CallFrame* frame) {
    const LegacySite& site = Bound(kHostTyped, i);
    return HandleTypedCall(*site.op, Platform::kHost, frame, &site.attributes);
  }
};

using Addresses = std::array<std::array<void*, kMaxAliases>, kNumSignatures>;

template <size_t... i>
Addresses MakeAddresses(std::index_sequence<i...>) {
  return Addresses{{
      {reinterpret_cast<void*>(&Trampoline<i>::CudaOriginal)...},
      {reinterpret_cast<void*>(&Trampoline<i>::CudaStatusReturning)...},
      {reinterpret_cast<void*>(&Trampoline<i>::HostOriginal)...},
      {reinterpret_cast<void*>(&Trampoline<i>::HostStatusReturning)...},
      {reinterpret_cast<void*>(&Trampoline<i>::HostUnified)...},
      {reinterpret_cast<void*>(&Trampoline<i>::CudaTyped)...},
      {reinterpret_cast<void*>(&Trampoline<i>::HostTyped)...},
  }};
}

// Which trampoline serves which call.
class AliasTable {
 public:
  StatusOr<void*> Bind(Signature signature, std::unique_ptr<const LegacySite> site) {
    // Written anew, so that blanks and the op's two names make no difference.
    OpaqueCall canonical = site->call;
    canonical.op = site->op->name;
    XLA_GPU_ASSIGN_OR_RETURN(std::string key, EncodeOpaque(canonical));
    std::lock_guard lock(mutex_);
    auto& known = known_[signature];
    if (auto found = known.find(key); found != known.end()) {
      return addresses_[signature][found->second];
    }
    const size_t next = known.size();
    if (next == kMaxAliases) {
      return ResourceExhausted(
          StrCat(site->op->name, ": all ", kMaxAliases,
                 " aliases of this platform and API version are taken, one for each set of shapes "
                 "and attributes; use typed calls (API version 4), or fewer shapes"));
    }
    bindings[signature][next].store(site.release(), std::memory_order_release);
    known.emplace(std::move(key), next);
    return addresses_[signature][next];
  }

  bool IsBound(Signature signature, const void* handler) {
    std::lock_guard lock(mutex_);
    const auto& addresses = addresses_[signature];
    const auto end = addresses.begin() + static_cast<std::ptrdiff_t>(known_[signature].size());
    return std::find(addresses.begin(), end, handler) != end;
  }

 private:
  const Addresses addresses_ = MakeAddresses(std::make_index_sequence<kMaxAliases>{});
  ForkSafeMutex mutex_;
  std::array<std::unordered_map<std::string, size_t>, kNumSignatures> known_;
};
auto& aliases = *new AliasTable;

// A legacy call cannot tell its errors well (legacy_status.h), so they are found here.
Status CheckSite(const Op& op, Platform platform, int api_version, const LegacySite& site) {
  if (site.op != &op) {
    return InvalidArgument(
        StrCat(op.name, ": opaque names the op '", site.op->name, "'; it must be ", op.name));
  }
  if (op.make_plan[static_cast<int>(platform)] == nullptr) {
    return Unimplemented(
        StrCat(op.name, ": there is no kernel for platform ", PlatformName(platform)));
  }
  if (api_version != 4) return CheckCall(op, platform, site.AsCall());
  // The frame brings the types; those in the text are only checked if there are any.
  return site.args.empty() ? OkStatus() : InferResults(op, platform, site.AsCall()).status();
}

}  // namespace

StatusOr<void*> AliasHandler(const Op& op, Platform platform, int api_version,
                             std::string_view opaque) {
  if (api_version < 1 || api_version > 4) {
    return InvalidArgument(
        StrCat("api_version is ", api_version, "; allowed are 1, 2, 3 (legacy) and 4 (typed FFI)"));
  }
  auto site = MakeLegacySite(opaque);
  if (!site.ok()) {
    return Status(site.status().code(), StrCat(op.name, ": ", site.status().message()));
  }
  XLA_GPU_RETURN_IF_ERROR(CheckSite(op, platform, api_version, **site));
  return aliases.Bind(SignatureOf(platform, api_version), *std::move(site));
}

bool IsAlias(const void* handler, Platform platform, int api_version) {
  return aliases.IsBound(SignatureOf(platform, api_version), handler);
}

}  // namespace xla_gpu::xla
