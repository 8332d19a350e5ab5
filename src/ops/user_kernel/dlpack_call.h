// dlpack: what a function that takes DLPack tensors is called with (definition.h).
#ifndef XLA_GPU_OPS_USER_KERNEL_DLPACK_CALL_H_
#define XLA_GPU_OPS_USER_KERNEL_DLPACK_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/core/dlpack.h"

namespace xla_gpu::user_kernel {

// The function's first parameter; python/xla_gpu/torch/_callback.py has the same.
struct DlpackCall {
  void* stream;  // CUDA: where to enqueue; null on the Host
  dlpack::Device device;
  // Of the tensors that it is given, those that nobody has deleted yet. When it returns 0, none may
  // be left.
  const std::atomic<int64_t>* in_use;
  // Written by the function: how many of the tensors, from the first on, it has taken over and will
  // delete; the others stay the caller's.
  int64_t taken;
  char error[4080];  // its text, which ends with a 0
};
static_assert(sizeof(DlpackCall) == 4112 && offsetof(DlpackCall, error) == 32);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_DLPACK_CALL_H_
