// libxla_gpu_pjrt.so: what a framework loads as a PJRT plugin. All it does is in libxla_gpu.so
// beside it, so that a process has one registry of handlers, whichever door they come through.
#include "xla_gpu/xla_gpu.h"

extern "C" XLA_GPU_EXPORT const void* GetPjrtApi(void) { return xla_gpu_pjrt_compat_api(); }
