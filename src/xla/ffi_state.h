// What stages of XLA FFI handlers leave for later ones, over the versions of XLA's FFI.
#ifndef XLA_GPU_XLA_FFI_STATE_H_
#define XLA_GPU_XLA_FFI_STATE_H_

#include <functional>
#include <string>
#include <string_view>

#include "src/core/status.h"
#include "xla/ffi/api/c_api.h"

namespace xla_gpu::xla {

// The state that an instantiate stage makes.
class FfiState {
 public:
  FfiState() = default;
  FfiState(const FfiState&) = delete;
  FfiState& operator=(const FfiState&) = delete;
  ~FfiState() {
    if (value_ != nullptr && deleter_ != nullptr) deleter_(value_);
  }

  // Its type's XLA_FFI_TypeId, which gets an id if it has none, and XLA_FFI_TypeInfo, which says
  // how handlers since FFI 0.2 delete it. Either may be null: not given.
  Status SetType(const void* type_id, const void* type_info);
  bool has_deleter() const { return deleter_ != nullptr; }

  // The calls of a handler of FFI 0.`minor`.
  Status Set(const XLA_FFI_State_Set_Args* args, int minor);
  Status Get(XLA_FFI_State_Get_Args* args, int minor) const;

 private:
  void* value_ = nullptr;
  int64_t type_id_ = 0;
  void (*deleter_)(void*) = nullptr;
};

// Whether handlers in a function's library may assert that a state's type has an id: it holds such
// an assertion's text, which one built with NDEBUG does not. True where there is no library to
// read.
bool MayAssertStateType(const void* function);
// Whether a text has that assertion's.
bool IsAboutStateType(std::string_view text);

// What an assertion of `call` writes that ends the process; empty where none does. It is called in
// a child process.
std::string FailedAssertion(const std::function<void()>& call);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_FFI_STATE_H_
