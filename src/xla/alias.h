// Aliases: handlers with a call of their own.
//
// A handler has no user data, and Host calls of versions 1 and 2 carry no opaque text. An alias is
// a handler bound to one such text; registered under a name of its own, it serves that call.
#ifndef XLA_GPU_XLA_ALIAS_H_
#define XLA_GPU_XLA_ALIAS_H_

#include <string_view>

#include "src/core/op.h"

namespace xla_gpu::xla {

// Aliases are a pool of static functions, so there is a bound for each version.
inline constexpr size_t kMaxAliases = 1024;

// The handler of `op` on the Host by version 1 or 2 (else an error) for the call that `opaque`
// describes; the same address for an equal call. It is never given back. A call that the op would
// refuse is refused here.
StatusOr<void*> AliasHandler(const Op& op, Platform platform, int api_version,
                             std::string_view opaque);

// Whether the function is an alias that AliasHandler has given for this platform and version.
bool IsAlias(const void* handler, Platform platform, int api_version);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_ALIAS_H_
