// TVM-FFI, the C ABI in which FlashInfer, CuTe DSL, TileLang, FlashAttention and others give their
// functions: the part that a caller and a callee need, by its documented layout, and where its
// library is found. Nothing of it is needed to build, or to load this library.
//
// The layouts are those of apache-tvm-ffi 0.1.0 and later.
#ifndef XLA_GPU_CORE_TVM_FFI_H_
#define XLA_GPU_CORE_TVM_FFI_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/dlpack.h"
#include "src/core/status.h"

namespace xla_gpu::tvm_ffi {

enum TypeIndex : int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kFloat = 3,
  kOpaquePtr = 4,
  kDataType = 5,
  kTensorPtr = 7,  // a dlpack::Tensor that the callee may look at until it returns
  kRawString = 8,
  kSmallString = 11,
  kFirstObject = 64,  // from here on the value is an object with a reference count
  kString = 65,
  kFunction = 68,
  kTensor = 70,
  kArray = 71,
  kList = 75,
};

// What every object begins with.
struct Object {
  uint64_t reference_counts;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};
static_assert(sizeof(Object) == 24 && offsetof(Object, type_index) == 8);

struct Any {
  int32_t type_index;
  uint32_t small_size;  // of a small string; else 0
  union {
    int64_t i;  // ints and bools
    double f;
    void* pointer;
    const char* text;
    Object* object;
    dlpack::DataType dtype;
    char small_text[8];
  };
};
static_assert(sizeof(Any) == 16 && offsetof(Any, i) == 8);

// What follows the header of some objects: its first members.
struct Bytes {  // of strings
  const char* data;
  size_t size;
};
struct ErrorCell {
  Bytes kind, message, backtrace;
};
struct SequenceCell {  // of arrays and lists
  const Any* items;
  int64_t size;
};
// Returns something else than 0 with an error raised. `result` is None when it is called.
using Function = int (*)(void* self, const Any* args, int32_t num_args, Any* result);
struct FunctionCell {
  Function call;
};

template <typename Cell>
Cell& CellOf(void* object) {
  return *reinterpret_cast<Cell*>(static_cast<char*>(object) + sizeof(Object));
}

// A library's functions are its symbols of this prefix.
inline constexpr std::string_view kSymbolPrefix = "__tvm_ffi_";

// The functions of libtvm_ffi that calls need, all of one copy of it.
struct Library {
  int (*EnvSetStream)(int32_t device_type, int32_t device_id, void* stream, void** previous);
  void* (*EnvGetStream)(int32_t device_type, int32_t device_id);
  int (*EnvSetAllocator)(dlpack::AllocateFn allocate, int for_all_threads,
                         dlpack::AllocateFn* previous);
  int (*EnvTensorAlloc)(dlpack::Tensor* prototype, void** tensor);
  void (*ErrorMoveFromRaised)(void** error);
  void (*ErrorSetRaisedFromCStr)(const char* kind, const char* message);
  int (*ObjectIncRef)(void* object);
  int (*ObjectDecRef)(void* object);
  int (*TensorFromDLPackVersioned)(dlpack::ManagedTensor* tensor, int32_t require_alignment,
                                   int32_t require_contiguous, void** object);
};

// What to do where libtvm_ffi is missing.
inline constexpr std::string_view kRemedy =
    "pip install apache-tvm-ffi, and import tvm_ffi before or name its libtvm_ffi.so";

// Loads libtvm_ffi.so from `path` unless the process has it: two copies would end the process. The
// error says what to install.
Status LoadLibrary(const std::string& path);

// The copy of libtvm_ffi that `kernels` (a dlopen handle, or null) is linked with, else the one in
// the process. The error says how to get one there.
StatusOr<Library> FindLibrary(void* kernels);

// The error that a function of the library, or one that was called, has raised.
Status TakeRaised(const Library& library);

}  // namespace xla_gpu::tvm_ffi

#endif  // XLA_GPU_CORE_TVM_FFI_H_
