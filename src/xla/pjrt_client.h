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

class PjrtClient;

// A tensor on the client's device.
class DeviceBuffer {
 public:
  DeviceBuffer(const PjrtPlugin* plugin, PJRT_Buffer* buffer) : plugin_(plugin), buffer_(buffer) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  StatusOr<TensorSpec> type() const;
  StatusOr<HostTensor> ToHost() const;
  PJRT_Buffer* get() const { return buffer_; }

 private:
  const PjrtPlugin* plugin_;
  PJRT_Buffer* buffer_;
};

class PjrtExecutable {
 public:
  PjrtExecutable(const PjrtPlugin* plugin, PJRT_LoadedExecutable* executable);
  PjrtExecutable(PjrtExecutable&& other) noexcept;
  PjrtExecutable& operator=(PjrtExecutable&&) = delete;
  ~PjrtExecutable();

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
  StatusOr<PJRT_Executable*> GetExecutable() const;

  const PjrtPlugin* plugin_;
  PJRT_LoadedExecutable* executable_;
  // Nothing where the plugin does not tell.
  std::optional<std::vector<std::optional<TensorSpec>>> parameters_;
};

class PjrtClient {
 public:
  // On a GPU: the first visible device, no memory taken ahead (unlike JAX's 75 %).
  static StatusOr<std::unique_ptr<PjrtClient>> Create(const PjrtPlugin* plugin);
  ~PjrtClient();
  PjrtClient(const PjrtClient&) = delete;
  PjrtClient& operator=(const PjrtClient&) = delete;

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
      : plugin_(plugin), client_(client) {}
  Status ReadDescription();

  const PjrtPlugin* plugin_;
  PJRT_Client* client_;
  PJRT_Device* device_ = nullptr;
  std::string platform_name_;
  std::string device_kind_;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_CLIENT_H_
