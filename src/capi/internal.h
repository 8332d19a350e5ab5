// What the files of the C ABI share.
#ifndef XLA_GPU_CAPI_INTERNAL_H_
#define XLA_GPU_CAPI_INTERNAL_H_

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "src/core/op.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"
#include "xla_gpu/xla_gpu.h"

struct xla_gpu_status {
  xla_gpu::Status status;
};

namespace xla_gpu {

inline constexpr size_t kMaxTensors = 64;
inline constexpr int32_t kMaxRank = 16;

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
  }
}

inline char* CopyString(const std::string& text) {
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// The error for a struct that is smaller than this header's.
Status BadStruct(const char* name, size_t came, size_t needed);

// Checks the structs and fills out[0 .. count); `kind` ("argument") is for messages. `out` has room
// for kMaxTensors. The views point into the caller's memory.
Status ReadTensors(const char* kind, const xla_gpu_tensor* tensors, size_t count, TensorView* out);

// A C call decoded onto the stack; it points into the caller's memory.
struct DecodedCall {
  DecodedCall() {}  // NOLINT(modernize-use-equals-default): it would be deleted
  const Op* op = nullptr;
  Platform platform = Platform::kHost;
  // Made by ReadTensors, as many as come: clearing all would be a third of a small call's time.
  union {
    TensorView args[kMaxTensors];
  };
  union {
    TensorView results[kMaxTensors];
  };
  Attributes attributes;
  Call call;
};

// Checks the structs of `c` and fills `out`; results only `with_results`.
Status Decode(const xla_gpu_call* c, bool with_results, DecodedCall& out);

}  // namespace xla_gpu

#endif  // XLA_GPU_CAPI_INTERNAL_H_
