// The smallest custom call: scale * (a + b) on three floats, by each of XLA's API versions.
//
// minimal_xla_custom_call.py compiles and calls it. Without nvcc (no __CUDACC__) it is plain C++
// for XLA on the CPU, whose plugin takes the typed handler only.
#include <cstddef>
#include <cstdlib>
#include <string>

// ---- Untyped: API versions 1, 2, 3 ----
// Such a call carries no shapes: what varies must be in the opaque text. Here it is the scale.
constexpr size_t kElements = 3;

static float ScaleFrom(const char* opaque, size_t size) {
  return size == 0 ? 1.0f : std::strtof(std::string(opaque, size).c_str(), nullptr);
}

#ifdef __CUDACC__
#include <cuda_runtime.h>

__global__ void Add(const float* a, const float* b, float* out, size_t n, float scale) {
  const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = scale * (a[i] + b[i]);
}

static cudaError_t Launch(cudaStream_t stream, const float* a, const float* b, float* out, size_t n,
                          float scale) {
  // On XLA's stream, and without waiting: XLA orders what comes before and after.
  Add<<<(n + 255) / 256, 256, 0, stream>>>(a, b, out, n, scale);
  return cudaGetLastError();
}

// `buffers`: the arguments, then the results, in device memory.
extern "C" void simple_add(cudaStream_t stream, void** buffers, const char* opaque, size_t size) {
  Launch(stream, static_cast<const float*>(buffers[0]), static_cast<const float*>(buffers[1]),
         static_cast<float*>(buffers[2]), kElements, ScaleFrom(opaque, size));
}

// API versions 2 and 3 add a place for an error. XLA's function that fills it is in no stock
// plugin, so a handler that must tell errors is better typed.
extern "C" void simple_add_status(cudaStream_t stream, void** buffers, const char* opaque,
                                  size_t size, void* /*XlaCustomCallStatus*/) {
  simple_add(stream, buffers, opaque, size);
}
#else
static void Add(const float* a, const float* b, float* out, size_t n, float scale) {
  for (size_t i = 0; i < n; ++i) out[i] = scale * (a[i] + b[i]);
}

extern "C" void simple_add(void* out, const void** in) {
  Add(static_cast<const float*>(in[0]), static_cast<const float*>(in[1]), static_cast<float*>(out),
      kElements, 1.0f);
}

extern "C" void simple_add_status(void* out, const void** in, const char* opaque, size_t size,
                                  void* /*XlaCustomCallStatus*/) {
  Add(static_cast<const float*>(in[0]), static_cast<const float*>(in[1]), static_cast<float*>(out),
      kElements, ScaleFrom(opaque, size));
}
#endif  // __CUDACC__

// ---- Typed: API version 4 ----
#ifdef WITH_XLA_FFI
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error CheckShapes(ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b) {
  if (a.element_count() == b.element_count()) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "simple_add: a has " + std::to_string(a.element_count()) +
                        " elements but b has " + std::to_string(b.element_count()));
}

#ifdef __CUDACC__
static ffi::Error AddTyped(cudaStream_t stream, ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b,
                           ffi::ResultBuffer<ffi::F32> out, float scale) {
  if (ffi::Error error = CheckShapes(a, b); error.failure()) return error;
  const cudaError_t status =
      Launch(stream, a.typed_data(), b.typed_data(), out->typed_data(), a.element_count(), scale);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal, cudaGetErrorString(status));
}
#define CONTEXT .Ctx<ffi::PlatformStream<cudaStream_t>>()
#else
static ffi::Error AddTyped(ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b,
                           ffi::ResultBuffer<ffi::F32> out, float scale) {
  if (ffi::Error error = CheckShapes(a, b); error.failure()) return error;
  Add(a.typed_data(), b.typed_data(), out->typed_data(), a.element_count(), scale);
  return ffi::Error::Success();
}
#define CONTEXT
#endif

// clang-format off
XLA_FFI_DEFINE_HANDLER_SYMBOL(simple_add_typed, AddTyped,
                              ffi::Ffi::Bind() CONTEXT
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale"));
// clang-format on
#endif  // WITH_XLA_FFI
