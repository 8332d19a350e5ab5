// What the files of the C ABI share.
#ifndef XLA_GPU_CAPI_INTERNAL_H_
#define XLA_GPU_CAPI_INTERNAL_H_

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/status.h"
#include "xla_gpu/xla_gpu.h"

struct xla_gpu_status {
  xla_gpu::Status status;
};

namespace xla_gpu {

// The status there always is memory for; xla_gpu_status_free leaves it.
xla_gpu_status* OutOfMemory();

inline xla_gpu_status* Wrap(Status status) {
  if (status.ok()) return nullptr;
  auto* wrapped = new (std::nothrow) xla_gpu_status{std::move(status)};
  return wrapped == nullptr ? OutOfMemory() : wrapped;
}

// Runs `body` (which returns a Status) so that nothing is thrown through the C ABI.
template <typename Body>
xla_gpu_status* Guard(Body body) {
  try {
    return Wrap(body());
  } catch (const std::exception&) {
    return Wrap(StatusFromException(""));
  } catch (...) {
    return Wrap(Internal("the function threw what is no std::exception"));
  }
}

inline char* CopyString(const std::string& text) {
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// The error for a struct that is smaller than this header's.
Status BadStruct(const char* name, size_t came, size_t needed);

// Checks the structs and adds them to `out`. The views point into the caller's memory.
Status ReadTensors(const xla_gpu_tensor* tensors, size_t count, TensorList& out);

struct DecodedCall : CallFrame {
  Platform platform = Platform::kHost;
};

// Checks the structs of `c` and fills `out`; results only `with_results`. Returns the op.
StatusOr<const Op*> Decode(const xla_gpu_call* c, bool with_results, DecodedCall& out);

}  // namespace xla_gpu

#endif  // XLA_GPU_CAPI_INTERNAL_H_
