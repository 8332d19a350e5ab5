#include "src/xla/pjrt_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "pjrt_c_api.h"
#include "src/core/fork.h"
#include "src/core/strings.h"
#include "src/xla/pjrt_args.h"
#include "src/xla/pjrt_discovery.h"

namespace xla_gpu::xla {
namespace {

// A chain longer than this is a cycle or garbage.
constexpr int kMaxExtensions = 64;
// Since PJRT 0.57 PJRT_Api only grows at its end (jaxlib 0.4.36).
constexpr int kOldestMinor = 57;

ForkSafeMutex mutex;
// Every plugin adopted, by its PJRT_Api; guarded by mutex.
auto& plugins = *new std::map<const PJRT_Api*, std::unique_ptr<PjrtPlugin>>;
// Our tables that stand for a plugin; guarded by mutex.
auto& forwarders = *new std::map<const PJRT_Api*, const PjrtPlugin*>;

std::string PathOfAddress(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

std::string Version::ToString() const { return StrCat(major, ".", minor); }

PjrtPlugin::PjrtPlugin(const PJRT_Api* api, std::string path) : api_(api), path_(std::move(path)) {
  const PJRT_Extension_Base* next = api->extension_start;
  for (int i = 0; next != nullptr && i < kMaxExtensions; ++i, next = next->next) {
    extensions_.push_back({static_cast<int>(next->type), next->struct_size, next});
  }
}

Version PjrtPlugin::pjrt_version() const {
  return {api_->pjrt_api_version.major_version, api_->pjrt_api_version.minor_version};
}

const PJRT_Extension_Base* PjrtPlugin::FindExtension(int type) const {
  for (const Extension& extension : extensions_) {
    if (extension.type == type) return extension.base;
  }
  return nullptr;
}

Status PjrtPlugin::TakeError(PJRT_Error* error, const char* what) const {
  if (error == nullptr) return OkStatus();
  PjrtArgs<PJRT_Error_Message_Args> message;
  message->error = error;
  api_->PJRT_Error_Message(message.get());
  PjrtArgs<PJRT_Error_GetCode_Args> code;
  code->error = error;
  // A failure to tell the code leaves it UNKNOWN; that second error is of no interest to anyone.
  PJRT_Error* code_error = api_->PJRT_Error_GetCode(code.get());
  const StatusCode status_code =
      code_error == nullptr ? static_cast<StatusCode>(code->code) : StatusCode::kUnknown;
  Status status(status_code,
                StrCat(what, ": ", std::string(message->message, message->message_size)));
  for (PJRT_Error* spent : {error, code_error}) {
    if (spent == nullptr) continue;
    PjrtArgs<PJRT_Error_Destroy_Args> destroy;
    destroy->error = spent;
    api_->PJRT_Error_Destroy(destroy.get());
  }
  return status;
}

StatusOr<const PjrtPlugin*> PjrtPlugin::Adopt(const PJRT_Api* api, std::string path) {
  if (auto forwarder = forwarders.find(api); forwarder != forwarders.end()) {
    return forwarder->second;
  }
  if (auto known = plugins.find(api); known != plugins.end()) return known->second.get();
  if (api->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy)) {
    return InvalidArgument("the PJRT_Api given has struct_size ", api->struct_size,
                           "; that is no PJRT_Api");
  }
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR || version.minor_version < kOldestMinor) {
    return FailedPrecondition("plugin ", path, " has PJRT version ", version.major_version, ".",
                              version.minor_version, "; ", PJRT_API_MAJOR, ".", kOldestMinor,
                              " or newer is needed (jaxlib 0.4.36 or newer)");
  }
  std::unique_ptr<PjrtPlugin> plugin(new PjrtPlugin(api, std::move(path)));
  const PjrtPlugin* result = plugin.get();
  plugins.emplace(api, std::move(plugin));
  return result;
}

StatusOr<const PjrtPlugin*> PjrtPlugin::FromApi(const void* api) {
  if (api == nullptr) return InvalidArgument("the PJRT_Api pointer is NULL");
  std::lock_guard lock(mutex);
  // Every plugin's PJRT_Api is a static object of its .so, so the path follows from the address.
  return Adopt(static_cast<const PJRT_Api*>(api), PathOfAddress(api));
}

StatusOr<const PjrtPlugin*> PjrtPlugin::Load(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return NotFound("PJRT plugin '", path, "' is no file", error ? ": " : "",
                    error ? error.message() : "");
  }
  // No lock while foreign code runs: GetPjrtApi of the compatibility plugin comes back here.
  const std::string absolute = std::filesystem::canonical(path, error).string();
  PreloadNvidiaLibraries(absolute);
  // NODELETE: XLA's threads and registries outlive any handle. LOCAL: two plugins carry the same
  // symbols (each its own XLA) and must not see each other's.
  void* handle = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return FailedPrecondition("PJRT plugin ", absolute, " cannot be loaded: ", dlerror());
  }
  using GetPjrtApiFn = const PJRT_Api* (*)();
  auto get_api = reinterpret_cast<GetPjrtApiFn>(dlsym(handle, "GetPjrtApi"));
  if (get_api == nullptr) {
    return InvalidArgument(absolute, " is no PJRT plugin: it exports no GetPjrtApi");
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr) return Internal("GetPjrtApi of ", absolute, " returned NULL");
  StatusOr<const PjrtPlugin*> adopted = [&] {
    std::lock_guard lock(mutex);
    return Adopt(api, absolute);
  }();
  if (!adopted.ok()) return adopted;
  const PjrtPlugin* plugin = *adopted;
  // Initialising twice is harmless, so a plugin that JAX has set up may come this way too.
  std::call_once(plugin->initialize_once_, [plugin] {
    PjrtArgs<PJRT_Plugin_Initialize_Args> initialize;
    plugin->initialized_ = XLA_GPU_PJRT_CALL(*plugin, PJRT_Plugin_Initialize, initialize);
  });
  if (!plugin->initialized_.ok()) return plugin->initialized_;
  return plugin;
}

void PjrtPlugin::AddForwarder(const PJRT_Api* forwarder, const PjrtPlugin* plugin) {
  std::lock_guard lock(mutex);
  forwarders[forwarder] = plugin;
}

std::string ExtensionTypeName(int type) {
  static constexpr const char* kNames[] = {"Gpu_Custom_Call",
                                           "Profiler",
                                           "Custom_Partitioner",
                                           "Stream",
                                           "Layouts",
                                           "FFI",
                                           "MemoryDescriptions",
                                           "Triton",
                                           "RawBuffer",
                                           "PhaseCompile",
                                           "Example",
                                           "Unknown",
                                           "CrossHostTransfers",
                                           "ExecutableMetadata",
                                           "Callback",
                                           "HostAllocator"};
  if (type >= 0 && type < static_cast<int>(std::size(kNames))) return kNames[type];
  return StrCat("type ", type);
}

}  // namespace xla_gpu::xla
