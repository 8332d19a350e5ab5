#include "src/xla/handler_metadata.h"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "src/core/strings.h"
#include "src/xla/registration.h"
#include "xla/ffi/api/c_api.h"

// XLA's opaque error type, of which this file makes its own for handlers that it asks.
struct XLA_FFI_Error {
  std::string message;
};

namespace xla_gpu::xla {
namespace {

// The little of XLA_FFI_Api that a handler may use while it answers.
XLA_FFI_Api MakeAnswerApi() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                     XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
    return new XLA_FFI_Error{args->message == nullptr ? "" : args->message};
  };
  api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
    args->message = args->error->message.c_str();
  };
  api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
  return api;
}

// Structs with room behind them: handlers of newer headers write members that ours do not have.
struct PaddedMetadata {
  XLA_FFI_Metadata metadata{};
  char tail[128] = {};
};
struct PaddedFrame {
  XLA_FFI_CallFrame frame{};
  char tail[128] = {};
};

thread_local VersionProbeResult* probe_result = nullptr;

XLA_FFI_Error* ProbeHandler(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return nullptr;
  if (probe_result != nullptr && frame->api != nullptr) {
    probe_result->api_shown = true;
    probe_result->version = {frame->api->api_version.major_version,
                             frame->api->api_version.minor_version};
  }
  XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = 0;
  metadata->api_version.minor_version = 1;  // no runtime is older
  metadata->traits = 0;
  return nullptr;
}

const XLA_FFI_Api answer_api = MakeAnswerApi();

}  // namespace

Status CheckIsCode(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, access) != 3) {
      continue;
    }
    if (wanted < begin || wanted >= end) continue;
    if (access[2] == 'x') return OkStatus();
    break;
  }
  return InvalidArgument(
      StrCat("address ", address, " is no function: it does not lie in executable memory"));
}

const void* VersionProbeHandler() { return reinterpret_cast<const void*>(&ProbeHandler); }

VersionProbeScope::VersionProbeScope(VersionProbeResult* result) { probe_result = result; }
VersionProbeScope::~VersionProbeScope() { probe_result = nullptr; }

StatusOr<HandlerMetadata> AskHandler(const void* handler) {
  XLA_GPU_RETURN_IF_ERROR(CheckIsCode(handler));
  auto* function = reinterpret_cast<XLA_FFI_Handler*>(const_cast<void*>(handler));

  size_t frame_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  std::string complaint;
  for (int attempt = 0; attempt < 2; ++attempt) {
    PaddedMetadata answer;
    answer.metadata.struct_size = sizeof(answer);
    answer.metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    answer.metadata.api_version.major_version = -1;
    XLA_FFI_Metadata_Extension extension{};
    extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata,
                                nullptr};
    extension.metadata = &answer.metadata;
    PaddedFrame padded;
    padded.frame.struct_size = frame_size;
    padded.frame.extension_start = &extension.extension_base;
    padded.frame.api = &answer_api;
    padded.frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    XLA_FFI_Error* error = function(&padded.frame);
    if (error == nullptr) {
      const XLA_FFI_Api_Version& version = answer.metadata.api_version;
      if (version.major_version < 0) {
        return InvalidArgument(
            "the function did not answer XLA's metadata call, so it is no typed FFI handler of "
            "jaxlib 0.4.38 or newer; is its API version 1, 2 or 3 (untyped)?");
      }
      return HandlerMetadata{{version.major_version, version.minor_version},
                             answer.metadata.traits};
    }
    complaint = error->message;
    delete error;
    // Handlers want the call frame of just their version and name its size when it differs.
    const std::string wanted = "XLA_FFI_CallFrame size: expected ";
    const size_t at = complaint.find(wanted);
    if (at == std::string::npos) break;
    frame_size = std::strtoul(complaint.c_str() + at + wanted.size(), nullptr, 10);
    if (frame_size > sizeof(PaddedFrame)) break;
  }
  return InvalidArgument(StrCat("the handler refuses XLA's metadata call: ", complaint));
}

}  // namespace xla_gpu::xla
