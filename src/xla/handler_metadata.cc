#include "src/xla/handler_metadata.h"

#include <dlfcn.h>

#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "src/core/forked_call.h"
#include "src/core/strings.h"
#include "src/xla/handlers.h"
#include "src/xla/registration.h"
#include "xla/ffi/api/c_api.h"

// XLA's opaque error type, of which this file makes its own for handlers that it asks.
struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error* next;
};

namespace xla_gpu::xla {
namespace {

constexpr int kTypedApiVersion = 4;
// A handler answers in microseconds; the rest is for a machine that is busy elsewhere.
constexpr std::chrono::seconds kAskLimit{5};
// No answer is expected from an untyped function, which may well wait for ever.
constexpr std::chrono::seconds kUntypedAskLimit{2};

// The errors that a handler has made while it was asked. What else it returns is no error of ours,
// and not to be looked into: the function is no handler.
thread_local XLA_FFI_Error* errors_made = nullptr;

void FreeErrors() {
  while (errors_made != nullptr) delete std::exchange(errors_made, errors_made->next);
}

// The little of XLA_FFI_Api that a handler may use while it answers.
XLA_FFI_Api MakeAnswerApi() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                     XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
    return errors_made =
               new XLA_FFI_Error{args->message == nullptr ? "" : args->message, errors_made};
  };
  api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
    args->message = args->error->message.c_str();
  };
  api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args*) {};  // FreeErrors does
  return api;
}

// Made beforehand: the child that asks must find no first use under way in another thread.
const XLA_FFI_Api answer_api = MakeAnswerApi();

// Structs with room behind them: handlers of newer headers write members that ours do not have.
template <typename Struct>
struct Padded {
  Struct value{};
  char tail[128] = {};
};

thread_local VersionProbeScope* probe_scope = nullptr;

XLA_FFI_Error* ProbeHandler(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return nullptr;
  if (probe_scope != nullptr && frame->api != nullptr) {
    const XLA_FFI_Api_Version& version = frame->api->api_version;
    probe_scope->seen = {version.major_version, version.minor_version};
  }
  XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = 0;
  metadata->api_version.minor_version = 1;  // no runtime is older
  metadata->traits = 0;
  return nullptr;
}

// What a function does when it is asked as a typed handler; bytes, to cross from a child.
struct Answer {
  enum Kind : int32_t { kSilent, kTold, kRefused, kNoError } kind;
  Version ffi;
  uint32_t traits;
  int64_t state_type;
  char complaint[512];
};

// Calls the function as XLA calls a typed handler for its metadata.
Answer Ask(const void* handler) {
  // With nulls for what an untyped signature would read further, that it not be of this call's.
  using Function = XLA_FFI_Error*(XLA_FFI_CallFrame*, void*, void*, void*, void*, void*);
  auto* function = reinterpret_cast<Function*>(const_cast<void*>(handler));
  Answer answer{};
  size_t frame_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Padded<XLA_FFI_Metadata> told;
    told.value.struct_size = sizeof(told);
    told.value.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    told.value.api_version.major_version = -1;
    XLA_FFI_Metadata_Extension extension{};
    extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata,
                                nullptr};
    extension.metadata = &told.value;
    Padded<XLA_FFI_CallFrame> padded;
    padded.value.struct_size = frame_size;
    padded.value.extension_start = &extension.extension_base;
    padded.value.api = &answer_api;
    padded.value.stage = XLA_FFI_ExecutionStage_EXECUTE;
    const XLA_FFI_Error* error =
        function(&padded.value, nullptr, nullptr, nullptr, nullptr, nullptr);
    if (error == nullptr) {
      const XLA_FFI_Api_Version& version = told.value.api_version;
      answer.kind = version.major_version < 0 ? Answer::kSilent : Answer::kTold;
      answer.ffi = {version.major_version, version.minor_version};
      answer.traits = told.value.traits;
      std::memcpy(&answer.state_type, told.tail, sizeof(answer.state_type));  // since FFI 0.2
      break;
    }
    const XLA_FFI_Error* known = errors_made;
    while (known != nullptr && known != error) known = known->next;
    if (known == nullptr) {
      answer.kind = Answer::kNoError;
      break;
    }
    answer.kind = Answer::kRefused;
    error->message.copy(answer.complaint, sizeof(answer.complaint) - 1);
    // Handlers want the call frame of just their version and name its size when it differs.
    const std::string wanted = "XLA_FFI_CallFrame size: expected ";
    const size_t at = error->message.find(wanted);
    if (at == std::string::npos) break;
    frame_size = std::strtoul(error->message.c_str() + at + wanted.size(), nullptr, 10);
    if (frame_size > sizeof(Padded<XLA_FFI_CallFrame>)) break;
  }
  FreeErrors();
  return answer;
}

StatusOr<HandlerMetadata> Read(const Answer& answer) {
  switch (answer.kind) {
    case Answer::kTold:
      return HandlerMetadata{answer.ffi, answer.traits, answer.state_type};
    case Answer::kRefused:
      return InvalidArgument("it refuses XLA's metadata call: ", answer.complaint);
    case Answer::kNoError:
      return InvalidArgument("it answers XLA's metadata call with what is no XLA_FFI_Error");
    case Answer::kSilent:
      break;
  }
  return InvalidArgument("it did not answer XLA's metadata call");
}

StatusOr<HandlerMetadata> AskInChild(const void* handler, std::chrono::milliseconds limit) {
  StatusOr<ForkedAnswer<Answer>> asked =
      CallForked<Answer>([handler] { return Ask(handler); }, limit);
  if (!asked.ok()) {
    return asked.status().After("it must be asked for XLA's metadata in a child process, but ");
  }
  if (asked->answer.has_value()) return Read(*asked->answer);
  return InvalidArgument("a child process that asked it for XLA's metadata ",
                         asked->end.HowItEnded());
}

// "getpid of /lib/libc.so.6", or what else can be said of an address.
std::string DescribeFunction(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return StrCat("the function at ", address);
  }
  if (info.dli_sname != nullptr && info.dli_saddr == address) {
    return StrCat(info.dli_sname, " of ", info.dli_fname);
  }
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
  return StrCat("the function at offset ", offset, " of ", info.dli_fname);
}

// The platform and version of a handler of this library's: those given, where it serves so. Its own
// need no asking, and can be told where XLA would call them wrongly.
std::optional<std::pair<Platform, int>> FindOwnHandler(const void* handler, Platform platform,
                                                       int api_version) {
  if (IsOwnHandler(handler, platform, api_version)) return std::pair(platform, api_version);
  for (const Platform other : {Platform::kHost, Platform::kCuda}) {
    for (int version = 1; version <= kTypedApiVersion; ++version) {
      if (IsOwnHandler(handler, other, version)) return std::pair(other, version);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string AccessTo(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  if (!maps) return "rwx";  // no /proc here
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char access[4] = "";
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %3s", &begin, &end, access) == 3 &&
        wanted >= begin && wanted < end) {
      return access;
    }
  }
  return "";
}

const void* VersionProbeHandler() { return reinterpret_cast<const void*>(&ProbeHandler); }

VersionProbeScope::VersionProbeScope() { probe_scope = this; }
VersionProbeScope::~VersionProbeScope() { probe_scope = nullptr; }

StatusOr<HandlerMetadata> AskHandler(const void* handler, Platform platform, int api_version) {
  if (!AccessTo(handler).ends_with('x')) {
    return InvalidArgument("address ", handler,
                           " is no function: it does not lie in executable memory");
  }
  const bool typed = api_version == kTypedApiVersion;
  if (const auto own = FindOwnHandler(handler, platform, api_version)) {
    if (own == std::pair(platform, api_version)) {
      return typed ? Read(Ask(handler)) : HandlerMetadata();
    }
    return InvalidArgument("it is this library's handler for platform ", PlatformName(own->first),
                           " and api_version ", own->second, ", not for ", PlatformName(platform),
                           " and ", api_version);
  }
  const StatusOr<HandlerMetadata> metadata =
      AskInChild(handler, typed ? kAskLimit : kUntypedAskLimit);
  if (typed && metadata.status().code() == StatusCode::kResourceExhausted) {
    return metadata.status();  // it could not be asked
  }
  if (typed && !metadata.ok()) {
    return InvalidArgument(
        DescribeFunction(handler),
        " is no typed FFI handler (api_version 4): ", metadata.status().message(),
        "; give a symbol of XLA_FFI_DEFINE_HANDLER_SYMBOL (headers of jaxlib 0.4.38 or "
        "newer), or api_version 1, 2 or 3 if its signature is an untyped one");
  }
  if (!typed && metadata.ok()) {
    return InvalidArgument(DescribeFunction(handler),
                           " is a typed FFI handler (it answers XLA's metadata call), which "
                           "a call of api_version ",
                           api_version, " would crash; register it with api_version 4");
  }
  return typed ? *metadata : HandlerMetadata();
}

}  // namespace xla_gpu::xla
