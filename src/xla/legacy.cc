#include "src/xla/legacy.h"

#include <array>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/fork.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"

namespace xla_gpu::xla {
namespace {

// The decoded text of every call site met so far whose call the op takes: what is refused may come
// in ever new texts. A look-up allocates nothing.
class SiteCache {
 public:
  // More call sites than a program has; past it the cache starts anew.
  static constexpr size_t kMaxSites = 4096;
  static constexpr size_t kMaxBytes = size_t{64} << 20;  // of texts

  StatusOr<std::shared_ptr<const LegacySite>> GetOrDecode(std::string_view opaque,
                                                          Platform platform) {
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      auto found = sites_.find(opaque);
      if (found != sites_.end()) return found->second;
    }
    XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const LegacySite> site, MakeLegacySite(opaque));
    // The call tells the error.
    if (!CheckCall(*site->op, platform, site->AsCall()).ok()) return site;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (sites_.size() >= kMaxSites || bytes_ + opaque.size() > kMaxBytes) {
      sites_.clear();
      bytes_ = 0;
    }
    const auto [kept, is_new] = sites_.try_emplace(std::string(opaque), std::move(site));
    if (is_new) bytes_ += opaque.size();
    return kept->second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };

  std::shared_mutex mutex_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::shared_ptr<const LegacySite>, Hash, std::equal_to<>> sites_;
};
constinit PerProcess<SiteCache> site_cache;

// Adds `types` to `out`, each with its pointer; where there are no pointers, null.
Status Bind(const std::vector<TensorView>& types, void* const* pointers, TensorList& out) {
  for (size_t i = 0; i < types.size(); ++i) {
    XLA_GPU_RETURN_IF_ERROR(out.Add(pointers == nullptr ? nullptr : pointers[i], types[i].dtype,
                                    types[i].rank(), types[i].shape.data()));
  }
  return OkStatus();
}

Status BindBuffers(const LegacySite& site, Platform platform, const LegacyBuffers& buffers,
                   TensorList& args, TensorList& results) {
  void* const* in = buffers.buffers;
  void* const* out = in == nullptr ? nullptr : in + site.args.size();
  if (platform == Platform::kHost) {
    in = const_cast<void* const*>(buffers.in);
    out = site.results.size() == 1 ? &buffers.out : static_cast<void**>(buffers.out);
  }
  XLA_GPU_RETURN_IF_ERROR(Bind(site.args, in, args));
  return Bind(site.results, out, results);
}

void RunLegacyText(size_t slot, Platform platform, const char* opaque, size_t opaque_len,
                   const LegacyBuffers& buffers, const LegacyCaller& caller) {
  // Null in the handlers of ops that are defined at run time, which the text names.
  const bool defined = slot == OpRegistry::kMaxOps;
  const Op* const op = defined ? nullptr : OpRegistry::Global().ops()[slot].get();
  const std::string_view name = defined ? "kernel" : std::string_view(op->name);
  Status status;
  try {
    const std::string_view text = opaque == nullptr ? "" : std::string_view(opaque, opaque_len);
    auto site = site_cache.Get().GetOrDecode(text, platform);
    if (site.ok() && (defined ? !(*site)->op->key.empty() : (*site)->op == op)) {
      RunLegacySite(**site, platform, buffers, caller);
      return;
    }
    status = site.ok() ? InvalidArgument(name, ": opaque names the op '", (*site)->op->name,
                                         "' but the target is that of ", name)
                       : site.status().After(name, ": ");
  } catch (const std::exception&) {  // nothing may unwind into the runtime
    status = StatusFromException(name);
  }
  ReportFailure(status, platform, {}, caller);
}

// A legacy handler has no user data, so each op slot has functions of its own; the last slot's are
// those of all ops that are defined at run time. The return address
// tells the runtime that called, hence it is taken in the handler itself.
template <size_t slot>
void CudaOriginal(void* stream, void** buffers, const char* opaque, size_t opaque_len) {
  RunLegacyText(slot, Platform::kCuda, opaque, opaque_len, {.buffers = buffers},
                {.stream = stream, .return_address = __builtin_return_address(0)});
}

template <size_t slot>
void CudaStatusReturning(void* stream, void** buffers, const char* opaque, size_t opaque_len,
                         void* status) {
  RunLegacyText(
      slot, Platform::kCuda, opaque, opaque_len, {.buffers = buffers},
      {.stream = stream, .status = status, .return_address = __builtin_return_address(0)});
}

template <size_t slot>
void HostUnified(void* out, const void** in, const char* opaque, size_t opaque_len, void* status) {
  RunLegacyText(slot, Platform::kHost, opaque, opaque_len, {.out = out, .in = in},
                {.status = status, .return_address = __builtin_return_address(0)});
}

struct SlotHandlers {
  void (*cuda_original)(void*, void**, const char*, size_t);
  void (*cuda_status_returning)(void*, void**, const char*, size_t, void*);
  void (*host_unified)(void*, const void**, const char*, size_t, void*);
};

template <size_t... slots>
constexpr auto MakeHandlers(std::index_sequence<slots...>) {
  return std::array<SlotHandlers, sizeof...(slots)>{
      SlotHandlers{&CudaOriginal<slots>, &CudaStatusReturning<slots>, &HostUnified<slots>}...};
}

}  // namespace

StatusOr<std::unique_ptr<const LegacySite>> MakeLegacySite(std::string_view opaque) {
  auto site = std::make_unique<LegacySite>();
  XLA_GPU_ASSIGN_OR_RETURN(site->call, DecodeOpaque(opaque));
  auto op = OpRegistry::Global().Get(site->call.op);
  if (!op.ok()) return op.status().After("opaque: op: ");
  site->op = *op;
  XLA_GPU_ASSIGN_OR_RETURN(site->attributes, ViewAttributes(site->call));
  site->args = ViewTensors(site->call.args);
  site->results = ViewTensors(site->call.results);
  return std::unique_ptr<const LegacySite>(std::move(site));
}

void RunLegacySite(const LegacySite& site, Platform platform, const LegacyBuffers& buffers,
                   const LegacyCaller& caller) {
  TensorList args("argument"), results("result");
  Status status = BindBuffers(site, platform, buffers, args, results);
  if (status.ok()) {
    status = RunOp(*site.op, platform, {args.views(), results.views(), &site.attributes},
                   {.stream = caller.stream});
  }
  if (!status.ok()) ReportFailure(status, platform, results.views(), caller);
}

StatusOr<void*> LegacyHandler(const Op& op, Platform platform, int api_version) {
  static constexpr auto kHandlers =
      MakeHandlers(std::make_index_sequence<OpRegistry::kMaxOps + 1>{});
  if (api_version < 1 || api_version > 3) {
    return InvalidArgument("api_version is ", api_version, "; legacy are 1, 2 and 3");
  }
  const SlotHandlers& handlers = kHandlers[OpRegistry::Global().SlotOf(op)];
  if (platform == Platform::kCuda) {
    return api_version == 1 ? reinterpret_cast<void*>(handlers.cuda_original)
                            : reinterpret_cast<void*>(handlers.cuda_status_returning);
  }
  if (api_version == 3) return reinterpret_cast<void*>(handlers.host_unified);
  return FailedPrecondition(
      op.name, ": on the Host an API version ", api_version,
      " call carries no opaque, so that a handler cannot know its shapes; bind them to an "
      "alias (xla_gpu_alias), or use version 3 or 4");
}

}  // namespace xla_gpu::xla
