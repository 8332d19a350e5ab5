// A thin C++ client of a PJRT plugin: compile StableHLO, run it on one device, read results.
//
// Everything is synchronous. XLA's error texts come through whole.
#ifndef XLA_GPU_XLA_PJRT_CLIENT_H_
#define XLA_GPU_XLA_PJRT_CLIENT_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/host_tensor.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"
#include "src/xla/pjrt_plugin.h"

struct PJRT_Buffer;
struct PJRT_Client;
struct PJRT_Device;
struct PJRT_Event;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;

namespace xla_gpu::xla {

// An object that the plugin has given away, until it is destroyed by the plugin.
struct PjrtDeleter {
  const PjrtPlugin* plugin;
  void operator()(PJRT_Buffer* buffer) const;
  void operator()(PJRT_Executable* executable) const;
  void operator()(PJRT_LoadedExecutable* executable) const;
  void operator()(PJRT_Client* client) const;
};
template <typename T>
using PjrtOwned = std::unique_ptr<T, PjrtDeleter>;

// A tensor on the client's device.
class DeviceBuffer {
 public:
  DeviceBuffer(const PjrtPlugin* plugin, PJRT_Buffer* buffer)
      : plugin_(plugin), buffer_(buffer, {plugin}) {}

  StatusOr<TensorSpec> type() const;
  StatusOr<HostTensor> ToHost() const;
  PJRT_Buffer* get() const { return buffer_.get(); }

 private:
  const PjrtPlugin* plugin_;
  PjrtOwned<PJRT_Buffer> buffer_;
};

class PjrtExecutable {
 public:
  PjrtExecutable(const PjrtPlugin* plugin, PJRT_LoadedExecutable* executable);

  StatusOr<size_t> num_outputs() const;
  // An error unless the arguments are of the number and types that the module takes; some plugins
  // read the bytes of another type as if they were of the right one. Passes what the plugin does
  // not tell the types of.
  Status CheckArguments(const std::vector<TensorView>& args) const;
  // Runs on one device and waits until it is done. No argument is donated.
  StatusOr<std::vector<DeviceBuffer>> Execute(const std::vector<const DeviceBuffer*>& args) const;
  // The optimised module as XLA holds it: a serialised HloModuleProto, or HloModuleProtoWithConfig
  // where `format` comes out as "hlo_with_config".
  StatusOr<std::string> OptimizedProgram(std::string* format) const;

 private:
  StatusOr<PjrtOwned<PJRT_Executable>> GetExecutable() const;

  const PjrtPlugin* plugin_;
  PjrtOwned<PJRT_LoadedExecutable> executable_;
  // Nothing where the plugin does not tell.
  std::optional<std::vector<std::optional<TensorSpec>>> parameters_;
};

class PjrtClient {
 public:
  // On a GPU: the first visible device, no memory taken ahead (unlike JAX's 75 %).
  static StatusOr<std::unique_ptr<PjrtClient>> Create(const PjrtPlugin* plugin);

  const PjrtPlugin& plugin() const { return *plugin_; }
  // "cpu", "cuda", as the plugin says.
  const std::string& platform_name() const { return platform_name_; }
  // "NVIDIA H200" and the like: the device's kind.
  const std::string& device_kind() const { return device_kind_; }

  // Compiles an MLIR module (text or bytecode; StableHLO) for one device.
  StatusOr<PjrtExecutable> Compile(std::string_view mlir) const;
  StatusOr<DeviceBuffer> ToDevice(const TensorView& tensor) const;

 private:
  explicit PjrtClient(const PjrtPlugin* plugin, PJRT_Client* client)
      : plugin_(plugin), client_(client, {plugin}) {}
  Status ReadDescription();

  const PjrtPlugin* plugin_;
  PjrtOwned<PJRT_Client> client_;
  PJRT_Device* device_ = nullptr;
  std::string platform_name_;
  std::string device_kind_;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_CLIENT_H_
