#include "src/xla/registration.h"

#include <map>
#include <mutex>
#include <tuple>

#include "pjrt_c_api.h"
#include "src/core/fork.h"
#include "src/core/strings.h"
#include "src/xla/handler_metadata.h"
#include "src/xla/handlers.h"
#include "src/xla/pjrt_extensions.h"

namespace xla_gpu::xla {
namespace {

constexpr int kTypedApiVersion = 4;

ForkSafeMutex facts_mutex;
auto& known_facts = *new std::map<const PJRT_Api*, RuntimeFacts>;  // guarded by facts_mutex

// XLA keeps typed and untyped handlers apart, so one name may have one of each.
using HandlerKey = std::tuple<const PJRT_Api*, std::string, Platform, bool>;
ForkSafeMutex registered_mutex;
auto& registered = *new std::map<HandlerKey, HandlerStages>;  // guarded by registered_mutex

const FfiExtension* FindFfi(const PjrtPlugin& plugin) {
  const auto* base = plugin.FindExtension(kFfiExtension);
  // Plugins up to PJRT 0.70 have the extension without register_handler.
  if (base == nullptr || base->struct_size < kFfiExtensionSizeWithRegister) return nullptr;
  const auto* extension = reinterpret_cast<const FfiExtension*>(base);
  return extension->register_handler == nullptr ? nullptr : extension;
}

const GpuCustomCallExtension* FindGpu(const PjrtPlugin& plugin) {
  const auto* base = plugin.FindExtension(kGpuCustomCallExtension);
  if (base == nullptr || base->struct_size < sizeof(GpuCustomCallExtension)) return nullptr;
  return reinterpret_cast<const GpuCustomCallExtension*>(base);
}

// Which layout the plugin's register_handler reads. Asked with a struct that ends after its size:
// every version checks that first, and its error names the size that it wants.
StatusOr<int> LearnFfiLayout(const PjrtPlugin& plugin, const FfiExtension& extension) {
  FfiRegisterHandlerArgsV2 args{};
  args.struct_size = sizeof(args.struct_size);
  const Status refusal = plugin.TakeError(extension.register_handler(&args), "PJRT FFI extension");
  const std::string wanted = "size: expected ";
  const size_t at = refusal.message().find(wanted);
  if (at != std::string::npos) {
    const unsigned long size =
        std::strtoul(refusal.message().c_str() + at + wanted.size(), nullptr, 10);
    if (size == kFfiRegisterHandlerSizeV1) return 1;
    if (size == kFfiRegisterHandlerSizeV2) return 2;
  }
  return Unimplemented(
      "plugin ", plugin.path(), " (PJRT ", plugin.pjrt_version().ToString(),
      ") registers FFI handlers by a struct that this library does not know: known are ",
      kFfiRegisterHandlerSizeV1, " and ", kFfiRegisterHandlerSizeV2,
      " bytes, the plugin says: ", refusal.ok() ? "nothing" : refusal.message());
}

Status RegisterThroughFfi(const PjrtPlugin& plugin, const FfiExtension& extension, int layout,
                          const Registration& r, bool typed, uint32_t traits) {
  void* handler = const_cast<void*>(r.stages.execute);
  if (layout == 1) {
    FfiRegisterHandlerArgsV1 args{
        kFfiRegisterHandlerSizeV1, r.name.data(),     r.name.size(), handler,
        r.platform.data(),         r.platform.size(), traits};
    return plugin.TakeError(extension.register_handler(&args), "PJRT FFI extension");
  }
  FfiRegisterHandlerArgsV2 args{
      kFfiRegisterHandlerSizeV2, r.name.data(),     r.name.size(), typed ? 1 : 0, handler,
      r.platform.data(),         r.platform.size(), traits};
  return plugin.TakeError(extension.register_handler(&args), "PJRT FFI extension");
}

Status RegisterThroughGpuCustomCall(const PjrtPlugin& plugin,
                                    const GpuCustomCallExtension& extension, const Registration& r,
                                    bool typed, uint32_t traits) {
  GpuRegisterCustomCallArgs args{};
  args.struct_size = sizeof(args);
  args.function_name = r.name.data();
  args.function_name_size = r.name.size();
  args.api_version = typed ? 1 : 0;
  args.handler_instantiate = const_cast<void*>(r.stages.instantiate);
  args.handler_prepare = const_cast<void*>(r.stages.prepare);
  args.handler_initialize = const_cast<void*>(r.stages.initialize);
  args.handler_execute = const_cast<void*>(r.stages.execute);
  args.traits = traits;
  return plugin.TakeError(extension.register_custom_call(&args), "PJRT Gpu_Custom_Call extension");
}

Status RegisterKnowing(const RuntimeFacts& facts, const PjrtPlugin& plugin, RegistrationRoute route,
                       const Registration& registration, bool typed, uint32_t traits) {
  if (route == RegistrationRoute::kGpuCustomCall) {
    const GpuCustomCallExtension* extension = FindGpu(plugin);
    if (extension == nullptr) {
      return Unimplemented("plugin ", plugin.path(), " has no extension Gpu_Custom_Call");
    }
    return RegisterThroughGpuCustomCall(plugin, *extension, registration, typed, traits);
  }
  if (facts.ffi_layout == 0) {
    return Unimplemented("plugin ", plugin.path(), " (PJRT ", plugin.pjrt_version().ToString(),
                         ") has no FFI extension that registers handlers");
  }
  if (!typed && facts.ffi_layout == 1) {
    return Unimplemented(
        facts.gpu_custom_call
            ? "this plugin registers untyped handlers by its extension Gpu_Custom_Call, "
              "which names no platform: for CUDA only"
            : "the FFI extension of this plugin takes typed handlers only (API version 4)");
  }
  return RegisterThroughFfi(plugin, *FindFfi(plugin), facts.ffi_layout, registration, typed,
                            traits);
}

StatusOr<RuntimeFacts> Learn(const PjrtPlugin& plugin) {
  RuntimeFacts facts;
  facts.gpu_custom_call = FindGpu(plugin) != nullptr;
  if (const FfiExtension* extension = FindFfi(plugin); extension != nullptr) {
    StatusOr<int> layout = LearnFfiLayout(plugin, *extension);
    // With Gpu_Custom_Call there is another road in.
    if (!layout.ok() && !facts.gpu_custom_call) return layout.status();
    if (layout.ok()) facts.ffi_layout = *layout;
  }
  if (!facts.takes_typed()) return facts;
  // The runtime shows its API to a handler when that is registered.
  Registration probe{.name = "xla_gpu_ffi_version_probe",
                     .platform = facts.gpu_custom_call ? "CUDA" : "Host"};
  probe.stages.execute = VersionProbeHandler();
  const auto route =
      facts.ffi_layout != 0 ? RegistrationRoute::kFfi : RegistrationRoute::kGpuCustomCall;
  const VersionProbeScope scope;
  XLA_GPU_RETURN_IF_ERROR(RegisterKnowing(facts, plugin, route, probe, true, 0));
  facts.ffi_told = scope.seen.has_value();
  facts.ffi = scope.seen.value_or(Version{0, 1});
  return facts;
}

Status RefuseNewer(const std::string& name, Version handler, Version runtime) {
  return FailedPrecondition(
      "handler '", name, "' was built against XLA FFI ", handler.ToString(),
      " but the runtime has FFI ", runtime.ToString(),
      ": it takes handlers of its own version or older. "
      "Build the handler against older headers (jaxlib 0.7.2's jaxlib/include has FFI 0.1, which "
      "every runtime since jaxlib 0.4.38 takes) or use a newer runtime");
}

}  // namespace

StatusOr<RuntimeFacts> LearnRuntime(const PjrtPlugin& plugin) {
  std::lock_guard lock(facts_mutex);
  if (auto found = known_facts.find(plugin.api()); found != known_facts.end()) return found->second;
  XLA_GPU_ASSIGN_OR_RETURN(RuntimeFacts facts, Learn(plugin));
  known_facts.emplace(plugin.api(), facts);
  return facts;
}

HandlerStages StagesOf(const void* handler, int api_version) {
  const bool own =
      api_version == kTypedApiVersion && (IsOwnHandler(handler, Platform::kHost, api_version) ||
                                          IsOwnHandler(handler, Platform::kCuda, api_version));
  return {.instantiate = own ? handler : nullptr, .execute = handler};
}

StatusOr<Platform> ParseXlaPlatform(std::string_view name) {
  if (name == "Host" || name == "cpu") return Platform::kHost;
  if (name == "CUDA" || name == "cuda" || name == "GPU" || name == "gpu") return Platform::kCuda;
  return InvalidArgument("platform is '", name,
                         "'; allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)");
}

StatusOr<HandlerMetadata> CheckHandler(const std::string& name, const HandlerStages& stages,
                                       const std::string& platform, int api_version,
                                       const std::optional<Version>& runtime_ffi) {
  if (name.empty()) {
    return InvalidArgument("a handler's name is empty; it is the target of the call");
  }
  XLA_GPU_ASSIGN_OR_RETURN(const Platform parsed, ParseXlaPlatform(platform));
  if (api_version < 1 || api_version > kTypedApiVersion) {
    return InvalidArgument("handler '", name, "': api_version is ", api_version,
                           "; allowed are 1, 2, 3 (untyped) and 4 (typed FFI)");
  }
  if (stages.execute == nullptr) {
    return InvalidArgument("handler '", name, "' is NULL (its execute stage is required)");
  }
  const bool staged =
      stages.instantiate != nullptr || stages.prepare != nullptr || stages.initialize != nullptr;
  if (api_version != kTypedApiVersion && staged) {
    return InvalidArgument("handler '", name, "' has api_version ", api_version,
                           " and more than one stage; untyped handlers have execute only");
  }
  HandlerMetadata result;
  const void* asked = nullptr;
  for (const void* stage :
       {stages.prepare, stages.initialize, stages.instantiate, stages.execute}) {
    if (stage == nullptr || stage == asked) continue;
    asked = stage;
    StatusOr<HandlerMetadata> metadata = AskHandler(stage, parsed, api_version);
    if (!metadata.ok()) {
      return metadata.status().After("handler '", name, "': ");
    }
    if (runtime_ffi.has_value() && api_version == kTypedApiVersion &&
        (metadata->ffi.major != runtime_ffi->major || metadata->ffi.minor > runtime_ffi->minor)) {
      return RefuseNewer(name, metadata->ffi, *runtime_ffi);
    }
    result = *metadata;  // that of execute, the last
  }
  return result;
}

RegistrationRoute DefaultRoute(const RuntimeFacts& facts) {
  return facts.gpu_custom_call ? RegistrationRoute::kGpuCustomCall : RegistrationRoute::kFfi;
}

Status RegisterUnchecked(const PjrtPlugin& plugin, RegistrationRoute route,
                         const Registration& registration, bool typed, uint32_t traits) {
  XLA_GPU_ASSIGN_OR_RETURN(RuntimeFacts facts, LearnRuntime(plugin));
  return RegisterKnowing(facts, plugin, route, registration, typed, traits);
}

Status Register(const PjrtPlugin& plugin, const Registration& r) {
  XLA_GPU_ASSIGN_OR_RETURN(RuntimeFacts facts, LearnRuntime(plugin));
  const std::string who =
      StrCat("handler '", r.name, "': plugin ", plugin.path(),
             plugin.path().empty() ? "(PJRT " : " (PJRT ", plugin.pjrt_version().ToString(), ") ");
  XLA_GPU_ASSIGN_OR_RETURN(const Platform platform, ParseXlaPlatform(r.platform));
  if ((platform == Platform::kCuda) != plugin.is_gpu()) {
    return InvalidArgument(who, "runs on ", plugin.is_gpu() ? "CUDA" : "Host",
                           ", so a handler for platform '", r.platform,
                           "' would never be called there");
  }
  const bool typed = r.api_version == kTypedApiVersion;
  XLA_GPU_ASSIGN_OR_RETURN(
      const HandlerMetadata metadata,
      CheckHandler(r.name, r.stages, r.platform, r.api_version,
                   facts.takes_typed() ? std::optional<Version>(facts.ffi) : std::nullopt));
  if (typed ? !facts.takes_typed() : !facts.takes_untyped()) {
    return Unimplemented(
        typed ? StrCat(who,
                       "has neither extension Gpu_Custom_Call nor one FFI that registers "
                       "handlers; use a newer plugin (jaxlib 0.7 or newer)")
              : StrCat(who, "takes typed FFI handlers only (FFI ", facts.ffi.ToString(),
                       "), not API version ", r.api_version,
                       "; register the typed handler with api_version 4 and emit "
                       "stablehlo.custom_call with api_version = 4 : i32"));
  }
  // Our own handlers do without instantiate; another's state would be missing at execute.
  const bool has_more =
      r.stages.prepare != nullptr || r.stages.initialize != nullptr ||
      (r.stages.instantiate != nullptr && r.stages.instantiate != r.stages.execute);
  if (has_more && DefaultRoute(facts) == RegistrationRoute::kFfi) {
    return Unimplemented(who,
                         "registers the execute stage only (by its FFI extension), so the "
                         "handler's other stages would never be called; do their work in "
                         "execute, or use JAX's own runtime (jax.ffi)");
  }
  std::lock_guard lock(registered_mutex);
  const HandlerKey key{plugin.api(), r.name, platform, typed};
  if (auto found = registered.find(key); found != registered.end()) {
    if (found->second == r.stages) return OkStatus();
    return Status(StatusCode::kAlreadyExists,
                  StrCat(who, "already has another ", typed ? "typed" : "untyped",
                         " handler under this name for ", PlatformName(platform),
                         "; a registration is for the life of the process: choose another name"));
  }
  Registration canonical = r;
  canonical.platform = PlatformName(platform);
  XLA_GPU_RETURN_IF_ERROR(
      RegisterKnowing(facts, plugin, DefaultRoute(facts), canonical, typed, metadata.traits));
  registered.emplace(key, r.stages);
  return OkStatus();
}

}  // namespace xla_gpu::xla
