// Putting custom-call handlers into a PJRT plugin's registry, with every refusal that XLA would
// keep silent about made aloud, before.
#ifndef XLA_GPU_XLA_REGISTRATION_H_
#define XLA_GPU_XLA_REGISTRATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/core/op.h"
#include "src/core/status.h"
#include "src/xla/pjrt_plugin.h"

namespace xla_gpu::xla {

// ---- What a runtime takes ----

struct RuntimeFacts {
  // The runtime's own FFI version: a typed handler built against a newer one is refused, silently.
  // Learnt by registering a handler of ours, to which the runtime shows its XLA_FFI_Api. Runtimes
  // up to PJRT 0.76 show none; all of those have FFI 0.1.
  Version ffi;
  bool ffi_told = false;         // shown by the runtime, not concluded
  int ffi_layout = 0;            // of extension FFI's register_handler: 1, 2; 0: it has none
  bool gpu_custom_call = false;  // extension Gpu_Custom_Call is there

  bool takes_typed() const { return ffi_layout != 0 || gpu_custom_call; }
  bool takes_untyped() const { return ffi_layout == 2 || gpu_custom_call; }
};

// Asked of the plugin once and kept.
StatusOr<RuntimeFacts> LearnRuntime(const PjrtPlugin& plugin);

// ---- What a handler is ----

struct HandlerMetadata {
  Version ffi;             // of the headers that the handler was built against
  uint32_t traits = 0;     // XLA_FFI_HANDLER_TRAITS_*: 1 = command-buffer compatible
  int64_t state_type = 0;  // id of the state's type that it makes, told since FFI 0.2; 0: none
};

// The typed handler's answer to XLA's metadata call; for an untyped one nothing. Fails for what is
// no code, for a function that as a typed handler gives no answer, and for one that as an untyped
// handler gives it. What is not this library's own is called in a child process, as it may crash,
// exit or hang.
StatusOr<HandlerMetadata> AskHandler(const void* handler, Platform platform, int api_version);

// The functions of a typed handler by stage; null where it has none. An untyped one has execute
// only.
struct HandlerStages {
  const void* instantiate = nullptr;
  const void* prepare = nullptr;
  const void* initialize = nullptr;
  const void* execute = nullptr;
  friend bool operator==(const HandlerStages&, const HandlerStages&) = default;
};

// The stages of one handler address: this library's own typed ones serve instantiate and execute,
// any other handler is taken as execute.
HandlerStages StagesOf(const void* handler, int api_version = 4);

// Platform::kHost for "Host" and "cpu", kCuda for "CUDA", "cuda", "GPU" and "gpu".
StatusOr<Platform> ParseXlaPlatform(std::string_view name);

// Everything about a handler that can be wrong before a plugin is looked at, and, where the
// runtime's FFI version is given, whether it takes this one. `api_version`: 1, 2, 3 (untyped) or 4
// (typed).
StatusOr<HandlerMetadata> CheckHandler(const std::string& name, const HandlerStages& stages,
                                       const std::string& platform, int api_version,
                                       const std::optional<Version>& runtime_ffi);

// ---- Registration ----

struct Registration {
  std::string name;  // the custom call's target
  HandlerStages stages;
  std::string platform;  // as ParseXlaPlatform
  int api_version = 4;
};

// Registers after all checks. The same registration again is fine; another handler under a name
// that this function has registered is an error (XLA would keep the first, or replace it, by
// version).
Status Register(const PjrtPlugin& plugin, const Registration& registration);

// The extension by which a handler goes in.
enum class RegistrationRoute { kFfi, kGpuCustomCall };
// Gpu_Custom_Call where the plugin has it (all stages; its platform is the plugin's), else FFI
// (execute only; the platform by name).
RegistrationRoute DefaultRoute(const RuntimeFacts& facts);

// Registers with no check and no record: for `xla-gpu probe`, which wants to see XLA's own answer.
// `typed` as the extension knows it; `traits` are the handler's (older plugins ask it). An error of
// the plugin, or a route that it does not have.
Status RegisterUnchecked(const PjrtPlugin& plugin, RegistrationRoute route,
                         const Registration& registration, bool typed, uint32_t traits);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_REGISTRATION_H_
