// The two PJRT extensions that register custom-call handlers. They are not in pjrt_c_api.h, and one
// of them changed its layout without a version number in the struct, so both layouts are here.
//
// How to tell them apart: every PJRT function checks its argument's struct_size first and names the
// size that it expects; RuntimeFacts (registration.h) asks with a struct that is too small.
#ifndef XLA_GPU_XLA_PJRT_EXTENSIONS_H_
#define XLA_GPU_XLA_PJRT_EXTENSIONS_H_

#include <cstddef>
#include <cstdint>

#include "pjrt_c_api.h"

namespace xla_gpu::xla {

// ---- Extension type 0 (Gpu_Custom_Call): CUDA and ROCm plugins only ----

struct GpuRegisterCustomCallArgs {
  size_t struct_size;
  const char* function_name;
  size_t function_name_size;
  int api_version;            // 0: untyped (custom-call API versions 1 to 3), 1: typed (4)
  void* handler_instantiate;  // these three may be null; untyped handlers have execute only
  void* handler_prepare;
  void* handler_initialize;
  void* handler_execute;
  uint32_t traits;  // read by extension version 3 (XLA of 2026); before, XLA asks the handler
};
inline constexpr size_t kGpuRegisterCustomCallSizeV2 =
    offsetof(GpuRegisterCustomCallArgs, handler_execute) + sizeof(void*);

struct GpuCustomCallExtension {
  PJRT_Extension_Base base;
  PJRT_Error* (*register_custom_call)(GpuRegisterCustomCallArgs* args);
};

// ---- Extension type 5 (FFI) ----

// The layout of PJRT 0.76 to 0.81 (our layout number 1): typed handlers only.
struct FfiRegisterHandlerArgsV1 {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
};
inline constexpr size_t kFfiRegisterHandlerSizeV1 =
    offsetof(FfiRegisterHandlerArgsV1, traits) + sizeof(uint32_t);

// The layout with an API version (our layout number 2): untyped handlers as well.
struct FfiRegisterHandlerArgsV2 {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  int api_version;  // 0: untyped, 1: typed
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
};
inline constexpr size_t kFfiRegisterHandlerSizeV2 =
    offsetof(FfiRegisterHandlerArgsV2, traits) + sizeof(uint32_t);

struct FfiExtension {
  PJRT_Extension_Base base;
  void* type_register;
  void* user_data_add;
  PJRT_Error* (*register_handler)(void* args);  // one of the two layouts
};
// Plugins before PJRT 0.7x have an extension without register_handler.
inline constexpr size_t kFfiExtensionSizeWithRegister = sizeof(FfiExtension);

static_assert(kFfiRegisterHandlerSizeV1 == 52 && kFfiRegisterHandlerSizeV2 == 60);
static_assert(kGpuRegisterCustomCallSizeV2 == 64 && sizeof(FfiExtension) == 48);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_EXTENSIONS_H_
