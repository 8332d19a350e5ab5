// Aliases: handlers with a call, or attributes, of their own.
//
// A handler has no user data, and Host versions 1 and 2 carry no opaque text. PyTorch/XLA moreover
// shares one executable between calls that differ in backend_config only, so there the
// configuration must be part of the target's *name*. An alias is a handler bound to one opaque
// text; registered under a name made from that text, it serves those calls in every runtime.
#ifndef XLA_GPU_XLA_ALIAS_H_
#define XLA_GPU_XLA_ALIAS_H_

#include <string_view>

#include "src/core/op.h"

namespace xla_gpu::xla {

// Aliases are a pool of static functions, so there is a bound for each platform and signature.
inline constexpr size_t kMaxAliases = 1024;

// The handler of `op` bound to `opaque`; the same address for an equal call. It is never given
// back.
//   Versions 1, 2, 3: the whole call comes from `opaque`, an opaque that XLA passes is not read. A
//     call that the op would refuse is refused here.
//   Version 4: the attributes of `opaque` are added to those of the call frame, whose buffers tell
//     the types; `args` and `results` may be empty.
StatusOr<void*> AliasHandler(const Op& op, Platform platform, int api_version,
                             std::string_view opaque);

// Whether the function is an alias that AliasHandler has given for this platform and version.
bool IsAlias(const void* handler, Platform platform, int api_version);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_ALIAS_H_
