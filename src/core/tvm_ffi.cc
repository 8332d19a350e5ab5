#include "src/core/tvm_ffi.h"

#include <dlfcn.h>

#include "src/core/strings.h"

namespace xla_gpu::tvm_ffi {
namespace {

constexpr const char* kSoname = "libtvm_ffi.so";

// The message of the last error of dlopen or dlsym in this thread.
std::string LoaderError() {
  const char* why = dlerror();
  return why == nullptr ? "no reason given" : why;
}

struct Symbol {
  template <typename Function>
  Symbol(const char* name, Function*& slot) : name(name), slot(reinterpret_cast<void**>(&slot)) {}

  const char* name;
  void** slot;
};

// Python's kinds of errors, as far as a code says the same.
StatusCode CodeOf(std::string_view kind) {
  if (kind == "ValueError" || kind == "TypeError" || kind == "IndexError") {
    return StatusCode::kInvalidArgument;
  }
  if (kind == "NotImplementedError") return StatusCode::kUnimplemented;
  if (kind == "MemoryError") return StatusCode::kResourceExhausted;
  return StatusCode::kInternal;
}

std::string_view ViewOf(const Bytes& bytes) {
  return bytes.data == nullptr ? "" : std::string_view(bytes.data, bytes.size);
}

}  // namespace

Status LoadLibrary(const std::string& path) {
  if (dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD) != nullptr) return OkStatus();
  // For all, as its Python package loads it: kernels need not be linked with it.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return OkStatus();
  return FailedPrecondition("libtvm_ffi cannot be loaded: ", LoaderError(), "; ", kRemedy);
}

StatusOr<Library> FindLibrary(void* kernels) {
  Library library;
  const Symbol symbols[] = {
      {"TVMFFIEnvSetDLPackManagedTensorAllocator", library.EnvSetAllocator},
      {"TVMFFIEnvSetStream", library.EnvSetStream},
      {"TVMFFIEnvGetStream", library.EnvGetStream},
      {"TVMFFIEnvTensorAlloc", library.EnvTensorAlloc},
      {"TVMFFIErrorMoveFromRaised", library.ErrorMoveFromRaised},
      {"TVMFFIErrorSetRaisedFromCStr", library.ErrorSetRaisedFromCStr},
      {"TVMFFIObjectIncRef", library.ObjectIncRef},
      {"TVMFFIObjectDecRef", library.ObjectDecRef},
      {"TVMFFITensorFromDLPackVersioned", library.TensorFromDLPackVersioned},
  };
  const auto has_it = [&symbols](void* handle) {
    return handle != nullptr && dlsym(handle, symbols[0].name) != nullptr;
  };
  void* handle = kernels;
  if (!has_it(handle)) handle = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (!has_it(handle)) handle = RTLD_DEFAULT;
  for (const Symbol& symbol : symbols) {
    *symbol.slot = dlsym(handle, symbol.name);
    if (*symbol.slot == nullptr) {
      return FailedPrecondition("libtvm_ffi is not in the process (", LoaderError(), "); ",
                                kRemedy);
    }
  }
  return library;
}

Status TakeRaised(const Library& library) {
  void* error = nullptr;
  library.ErrorMoveFromRaised(&error);
  if (error == nullptr) return Internal("the function failed without an error");
  const auto& cell = CellOf<ErrorCell>(error);
  const std::string_view kind = ViewOf(cell.kind);
  Status status(CodeOf(kind), StrCat(kind, ": ", ViewOf(cell.message)));
  library.ObjectDecRef(error);
  return status;
}

}  // namespace xla_gpu::tvm_ffi
