#include "src/xla/compat/api_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "pjrt_c_api.h"
#include "src/core/fork.h"
#include "src/xla/compat/bridge.h"
#include "src/xla/compat/own_error.h"
#include "src/xla/compat/struct_history.h"

namespace xla_gpu::xla {
namespace {

std::atomic<const PJRT_Api*> wrapped_api{nullptr};

const PJRT_Api& Wrapped() { return *wrapped_api.load(std::memory_order_relaxed); }
int WrappedMinor() { return Wrapped().pjrt_api_version.minor_version; }

// ---- Thunks: each forwards one function of the table ----

template <typename Args>
using Function = PJRT_Error* (*)(Args*);

// The argument struct itself is bridged.
template <auto kFunction, const StructHistory& kHistory>
struct BridgeArgs;
template <typename Args, Function<Args> PJRT_Api::*kFunction, const StructHistory& kHistory>
struct BridgeArgs<kFunction, kHistory> {
  static PJRT_Error* Call(Args* args) {
    BridgedStruct bridged(args, kHistory, WrappedMinor());
    if (!bridged.status().ok()) return MakeOwnError(bridged.status());
    PJRT_Error* error = (Wrapped().*kFunction)(static_cast<Args*>(bridged.get()));
    bridged.CopyBack();
    return error;
  }
};

// A struct that the argument struct points to is bridged.
template <auto kFunction, auto kMember, const StructHistory& kHistory>
struct BridgeMember;
template <typename Args, typename Member, Function<Args> PJRT_Api::*kFunction,
          Member* Args::*kMember, const StructHistory& kHistory>
struct BridgeMember<kFunction, kMember, kHistory> {
  static PJRT_Error* Call(Args* args) {
    Member* const framework = args->*kMember;
    BridgedStruct bridged(framework, kHistory, WrappedMinor());
    if (!bridged.status().ok()) return MakeOwnError(bridged.status());
    args->*kMember = static_cast<Member*>(bridged.get());
    PJRT_Error* error = (Wrapped().*kFunction)(args);
    args->*kMember = framework;
    bridged.CopyBack();
    return error;
  }
};

// The platform's name is ours.
template <auto kFunction>
struct Rename;
template <typename Args, Function<Args> PJRT_Api::*kFunction>
struct Rename<kFunction> {
  static PJRT_Error* Call(Args* args) {
    PJRT_Error* error = (Wrapped().*kFunction)(args);
    if (error != nullptr) return error;
    args->platform_name = kCompatPlatformName.data();
    args->platform_name_size = kCompatPlatformName.size();
    return nullptr;
  }
};

// In a child that fork() made, none of the client's threads exist: work would wait for ever.
std::atomic<int64_t> client_generation{-1};  // ForkGeneration() of the clients; -1: there is none

bool IsOrphan() {
  const int64_t generation = client_generation.load(std::memory_order_relaxed);
  return generation >= 0 && generation != ForkGeneration();
}

PJRT_Error* RefuseOrphan() {
  return MakeOwnError(FailedPrecondition(
      "xla_gpu: this process was forked from one that had opened a device of XLA, whose threads a "
      "fork does not copy; start processes by 'spawn' (torch_xla.launch does), or fork before the "
      "first use of a device"));
}

// Work for the client's threads is refused where there are none.
template <auto kFunction>
struct Guard;
template <typename Args, Function<Args> PJRT_Api::*kFunction>
struct Guard<kFunction> {
  static inline Function<Args> next = nullptr;  // the plugin's function, or another thunk
  static PJRT_Error* Call(Args* args) {
    if (IsOrphan()) return RefuseOrphan();
    PJRT_Error* error = next(args);
    if constexpr (std::is_same_v<Args, PJRT_Client_Create_Args>) {
      if (error == nullptr) client_generation = ForkGeneration();
    }
    return error;
  }
};

// ---- Errors: ours are answered here, the wrapped plugin's there ----

void ErrorDestroy(PJRT_Error_Destroy_Args* args) {
  if (FreeOwnError(args->error) || wrapped_api.load() == nullptr) return;
  Wrapped().PJRT_Error_Destroy(args);
}

void ErrorMessage(PJRT_Error_Message_Args* args) {
  if (const Status* own = FindOwnError(args->error); own != nullptr) {
    args->message = own->message().data();
    args->message_size = own->message().size();
  } else if (wrapped_api.load() != nullptr) {
    Wrapped().PJRT_Error_Message(args);
  }
}

PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* args) {
  if (const Status* own = FindOwnError(args->error); own != nullptr) {
    args->code = static_cast<PJRT_Error_Code>(own->code());
    return nullptr;
  }
  return wrapped_api.load() == nullptr ? nullptr : Wrapped().PJRT_Error_GetCode(args);
}

// ---- Tables ----

// Stands where the plugin's table has ended: a framework that does not look calls an error, not
// whatever lies there.
PJRT_Error* Missing(void*) {
  return MakeOwnError(
      Unimplemented("xla_gpu: the plugin has PJRT 0.", WrappedMinor(),
                    ", which has no such function; use a newer plugin (set XLA_GPU_PJRT_PLUGIN)"));
}

void FillSlots(PJRT_Api* table, size_t from, PJRT_Error* (*function)(void*)) {
  for (size_t at = from; at + sizeof(void*) <= PJRT_Api_STRUCT_SIZE; at += sizeof(void*)) {
    std::memcpy(reinterpret_cast<char*>(table) + at, &function, sizeof(function));
  }
}

PJRT_Api* NewTable(size_t size) {
  static auto* tables = new std::vector<std::unique_ptr<char[]>>;  // they live for ever
  tables->push_back(std::make_unique<char[]>(std::max(size, sizeof(PJRT_Api))));
  return reinterpret_cast<PJRT_Api*>(tables->back().get());
}

// Puts a thunk in place of a function that the wrapped plugin has.
template <auto kFunction, typename Thunk>
void Install(PJRT_Api* table) {
  const auto* slot = reinterpret_cast<const char*>(&(table->*kFunction));
  const size_t end =
      static_cast<size_t>(slot - reinterpret_cast<const char*>(table)) + sizeof(void*);
  if (end <= table->struct_size && table->*kFunction != nullptr) table->*kFunction = &Thunk::Call;
}

template <auto kFunction, const StructHistory& kHistory>
void InstallBridge(PJRT_Api* table) {
  Install<kFunction, BridgeArgs<kFunction, kHistory>>(table);
}

// Call it after the other thunks of the same function: it goes in front.
template <auto kFunction>
void InstallGuard(PJRT_Api* table) {
  Guard<kFunction>::next = table->*kFunction;
  Install<kFunction, Guard<kFunction>>(table);
}

Status& Failure() {
  static auto* status = new Status;
  return *status;
}

PJRT_Error* Fail(void*) { return MakeOwnError(Failure()); }

}  // namespace

const PJRT_Api* MakeForwardingApi(const PJRT_Api* wrapped) {
  PJRT_Api* table = NewTable(wrapped->struct_size);
  std::memcpy(static_cast<void*>(table), wrapped, wrapped->struct_size);
  FillSlots(table, wrapped->struct_size, &Missing);
  table->PJRT_Error_Destroy = &ErrorDestroy;
  table->PJRT_Error_Message = &ErrorMessage;
  table->PJRT_Error_GetCode = &ErrorGetCode;

  InstallBridge<&PJRT_Api::PJRT_Client_Create, kClientCreateArgs>(table);
  InstallBridge<&PJRT_Api::PJRT_Client_CreateViewOfDeviceBuffer, kCreateViewOfDeviceBufferArgs>(
      table);
  InstallBridge<&PJRT_Api::PJRT_Executable_DeserializeAndLoad, kDeserializeAndLoadArgs>(table);
  InstallBridge<&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats, kCompiledMemoryStatsArgs>(table);
  constexpr auto kExecute = &PJRT_Api::PJRT_LoadedExecutable_Execute;
  Install<kExecute,
          BridgeMember<kExecute, &PJRT_LoadedExecutable_Execute_Args::options, kExecuteOptions>>(
      table);

  constexpr auto kClientName = &PJRT_Api::PJRT_Client_PlatformName;
  Install<kClientName, Rename<kClientName>>(table);
  constexpr auto kTopologyName = &PJRT_Api::PJRT_TopologyDescription_PlatformName;
  Install<kTopologyName, Rename<kTopologyName>>(table);

  InstallGuard<&PJRT_Api::PJRT_Client_Create>(table);
  InstallGuard<&PJRT_Api::PJRT_Client_Compile>(table);
  InstallGuard<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(table);
  InstallGuard<&PJRT_Api::PJRT_LoadedExecutable_Execute>(table);
  InstallGuard<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(table);
  InstallGuard<&PJRT_Api::PJRT_Event_Await>(table);
  InstallGuard<&PJRT_Api::PJRT_Event_OnReady>(table);

  wrapped_api.store(wrapped);
  return table;
}

const PJRT_Api* MakeFailingApi(Status status) {
  Failure() = std::move(status);
  PJRT_Api* table = NewTable(PJRT_Api_STRUCT_SIZE);
  table->struct_size = PJRT_Api_STRUCT_SIZE;
  table->pjrt_api_version = {PJRT_Api_Version_STRUCT_SIZE, nullptr, PJRT_API_MAJOR, PJRT_API_MINOR};
  // Every function takes one pointer and returns PJRT_Error*, but for two of the first three.
  FillSlots(table, offsetof(PJRT_Api, PJRT_Error_Destroy), &Fail);
  table->PJRT_Error_Destroy = &ErrorDestroy;
  table->PJRT_Error_Message = &ErrorMessage;
  table->PJRT_Error_GetCode = &ErrorGetCode;
  return table;
}

}  // namespace xla_gpu::xla
