#include "src/xla/ffi_state.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <string>

#include "src/core/file.h"
#include "src/core/forked_call.h"
#include "src/xla/handler_metadata.h"

namespace xla_gpu::xla {
namespace {

// The arguments of XLA_FFI_State_Set and _Get since FFI 0.3. Up to 0.2 there is no stage; up to 0.1
// Set has the deleter behind them.
struct StagedArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId* type_id;
  void* state;
};

// XLA_FFI_TypeInfo, since FFI 0.2.
struct TypeInfo {
  size_t struct_size;
  void* extension_start;
  void (*deleter)(void*);
};

// Of `args`, what all versions have.
StagedArgs Read(const auto* args, int minor) {
  if (minor >= 3) return *reinterpret_cast<const StagedArgs*>(args);
  return {.struct_size = args->struct_size,
          .extension_start = args->extension_start,
          .ctx = args->ctx,
          .stage = XLA_FFI_ExecutionStage_INSTANTIATE,
          .type_id = args->type_id,
          .state = args->state};
}

}  // namespace

Status FfiState::SetType(const void* type_id, const void* type_info) {
  if (type_id != nullptr) {
    if (!AccessTo(type_id).starts_with("rw")) {
      return InvalidArgument("type_id is ", type_id,
                             ", where no variable lies; it must be the address of an "
                             "XLA_FFI_TypeId");
    }
    // XLA may have given it an id, and keeps one that it has: its own address, which none other is.
    std::atomic_ref id(static_cast<XLA_FFI_TypeId*>(const_cast<void*>(type_id))->type_id);
    int64_t none = 0;
    id.compare_exchange_strong(none, reinterpret_cast<int64_t>(type_id));
  }
  if (type_info == nullptr) return OkStatus();
  const auto* info = static_cast<const TypeInfo*>(type_info);
  if (!AccessTo(info).starts_with('r') || info->struct_size < sizeof(TypeInfo) ||
      !AccessTo(reinterpret_cast<const void*>(info->deleter)).ends_with('x')) {
    return InvalidArgument("type_info is ", type_info,
                           ", where no XLA_FFI_TypeInfo with a deleter lies");
  }
  deleter_ = info->deleter;
  return OkStatus();
}

Status FfiState::Set(const XLA_FFI_State_Set_Args* args, int minor) {
  const StagedArgs given = Read(args, minor);
  if (given.stage != XLA_FFI_ExecutionStage_INSTANTIATE || value_ != nullptr) {
    return FailedPrecondition("state is set once, while the handler is instantiated");
  }
  value_ = given.state;
  type_id_ = given.type_id->type_id;
  if (minor <= 1) deleter_ = args->deleter;
  return OkStatus();
}

Status FfiState::Get(XLA_FFI_State_Get_Args* args, int minor) const {
  const StagedArgs wanted = Read(args, minor);
  if (wanted.stage != XLA_FFI_ExecutionStage_INSTANTIATE) {
    return Unimplemented("the state of an instantiate stage alone is kept");
  }
  if (value_ == nullptr) return NotFound("the handler has set no state");
  if (wanted.type_id->type_id != type_id_) {
    return InvalidArgument("the state's type id is ", type_id_, ", not ", wanted.type_id->type_id);
  }
  if (minor >= 3) {
    reinterpret_cast<StagedArgs*>(args)->state = value_;
  } else {
    args->state = value_;
  }
  return OkStatus();
}

bool MayAssertStateType(const void* function) {
  constexpr uint64_t kMaxLibrary = uint64_t{64} << 20;
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return true;
  const StatusOr<std::string> library = ReadFile(info.dli_fname, kMaxLibrary);
  return !library.ok() || IsAboutStateType(*library);
}

bool IsAboutStateType(std::string_view text) {
  return text.find("type must be registered with XLA FFI") != std::string_view::npos;
}

std::string FailedAssertion(const std::function<void()>& call) {
  using Text = std::array<char, 1024>;
  const auto listen = [&call] {
    static sigjmp_buf back;  // the child has this thread alone
    const int said = memfd_create("", 0);
    dup2(said, STDERR_FILENO);
    signal(SIGABRT, [](int) { siglongjmp(back, 1); });
    Text text{};
    if (sigsetjmp(back, 1) == 0) {
      call();
    } else if (pread(said, text.data(), text.size() - 1, 0) < 0) {
      text = {};
    }
    return text;
  };
  const auto asked = CallForked<Text>(listen, std::chrono::seconds(5));
  return asked.ok() && asked->answer ? std::string(asked->answer->data()) : "";
}

}  // namespace xla_gpu::xla
