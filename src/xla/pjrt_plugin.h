// PjrtPlugin: one loaded PJRT plugin (a .so with GetPjrtApi), and the calls every user of one
// needs.
#ifndef XLA_GPU_XLA_PJRT_PLUGIN_H_
#define XLA_GPU_XLA_PJRT_PLUGIN_H_

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "src/core/status.h"

struct PJRT_Api;
struct PJRT_Error;
struct PJRT_Extension_Base;

namespace xla_gpu::xla {

struct Version {
  int major = 0;
  int minor = 0;
  std::string ToString() const;
  friend bool operator==(const Version&, const Version&) = default;
};

// Extension types by number, as in pjrt_c_api.h.
inline constexpr int kGpuCustomCallExtension = 0;
inline constexpr int kFfiExtension = 5;

// A plugin stays loaded for the life of the process, and so do these objects: XLA cannot be
// unloaded.
class PjrtPlugin {
 public:
  // Loads the plugin at `path` (the one object a path) and sets it up as JAX does: its nvidia/*
  // libraries are loaded first, PJRT_Plugin_Initialize is called.
  static StatusOr<const PjrtPlugin*> Load(const std::string& path);

  // The plugin behind a PJRT_Api* that somebody else loaded (JAX, another C++ program).
  static StatusOr<const PjrtPlugin*> FromApi(const void* api);

  // Makes `forwarder`, a table of ours that forwards to `plugin` (compat/), mean that plugin to
  // FromApi and Load: a handler registered by way of it must reach the same registry.
  static void AddForwarder(const PJRT_Api* forwarder, const PjrtPlugin* plugin);

  const PJRT_Api* api() const { return api_; }
  // The .so; empty if it cannot be told.
  const std::string& path() const { return path_; }
  Version pjrt_version() const;

  struct Extension {
    int type;
    size_t struct_size;
    const PJRT_Extension_Base* base;
  };
  const std::vector<Extension>& extensions() const { return extensions_; }
  // Null if the plugin has no extension of this type.
  const PJRT_Extension_Base* FindExtension(int type) const;
  // Built for CUDA or ROCm (it takes GPU custom calls).
  bool is_gpu() const { return FindExtension(kGpuCustomCallExtension) != nullptr; }

  // The error with its code and XLA's own text, prefixed by `what`; frees it. Null is OK.
  Status TakeError(PJRT_Error* error, const char* what) const;

 private:
  PjrtPlugin(const PJRT_Api* api, std::string path);
  static StatusOr<const PjrtPlugin*> Adopt(const PJRT_Api* api, std::string path);

  const PJRT_Api* api_;
  std::string path_;
  std::vector<Extension> extensions_;
  mutable std::once_flag initialize_once_;
  mutable Status initialized_;
};

// "FFI", "Gpu_Custom_Call", ...; "type 23" for one that this library does not know.
std::string ExtensionTypeName(int type);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_PLUGIN_H_
