// The PJRT_Api that the compatibility plugin gives to a framework.
#ifndef XLA_GPU_XLA_COMPAT_API_TABLE_H_
#define XLA_GPU_XLA_COMPAT_API_TABLE_H_

#include <string_view>

#include "src/core/status.h"

struct PJRT_Api;

namespace xla_gpu::xla {

// The name of the platform, whatever the wrapped plugin's is: PyTorch/XLA aborts at "cuda". Letters
// only, because it reads devices' names ("XLAGPU:0") as [A-Z]+:number where it replicates.
inline constexpr std::string_view kCompatPlatformName = "xlagpu";

// A table that forwards to `wrapped`, with the structs of struct_history.h bridged. PJRT functions
// have no user data, so there is one wrapped plugin for a process: a later call of this function
// is for tests, and replaces it. The table lives as long as the process.
const PJRT_Api* MakeForwardingApi(const PJRT_Api* wrapped);

// A table whose every function fails with `status`. A framework knows no other way to be told why a
// plugin is not there: GetPjrtApi returns no error.
const PJRT_Api* MakeFailingApi(Status status);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_COMPAT_API_TABLE_H_
