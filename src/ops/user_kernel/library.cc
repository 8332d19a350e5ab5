#include "src/ops/user_kernel/library.h"

#include <dlfcn.h>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {

StatusOr<void*> OpenLibrary(const std::string& path) {
  // The loader counts: the same file again is the same handle.
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* why = dlerror();
  return FailedPrecondition("the library ", path,
                            " cannot be loaded: ", why == nullptr ? "no reason given" : why);
}

StatusOr<const void*> FunctionOf(const Implementation& implementation, const std::string& symbol) {
  if (implementation.address != 0) return reinterpret_cast<const void*>(implementation.address);
  XLA_GPU_ASSIGN_OR_RETURN(void* library, OpenLibrary(implementation.library));
  if (const void* function = dlsym(library, symbol.c_str())) return function;
  return NotFound("the library ", implementation.library, " exports no symbol '", symbol,
                  "' (nm -D shows those that it exports; a C++ function needs extern \"C\")");
}

}  // namespace xla_gpu::user_kernel
