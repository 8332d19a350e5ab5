#include "src/ops/user_kernel/library.h"

#include <dlfcn.h>
#include <link.h>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {

namespace {

// Whether a symbol that dlsym found by the library is the process's own (libc's, libm's): it looks
// in the libraries that one needs, too, where a function `round` without extern "C" has a namesake.
bool IsOfProcess(void* library, const std::string& symbol, const void* found) {
  const link_map* opened = nullptr;
  Dl_info its{}, own{};
  return dlsym(RTLD_DEFAULT, symbol.c_str()) == found &&
         dlinfo(library, RTLD_DI_LINKMAP, &opened) == 0 && dladdr(opened->l_ld, &own) != 0 &&
         dladdr(found, &its) != 0 && its.dli_fbase != own.dli_fbase;
}

}  // namespace

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
  const void* const function = dlsym(library, symbol.c_str());
  if (function != nullptr && !IsOfProcess(library, symbol, function)) return function;
  return NotFound("the library ", implementation.library, " exports no symbol '", symbol,
                  "' (nm -D shows those that it exports; a C++ function needs extern \"C\")");
}

}  // namespace xla_gpu::user_kernel
