// TVM-FFI functions for CUDA that only enqueue on the environment's stream; the tests in tests/gpu
// compile it.
#include <cuda_runtime.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;
using ffi::Array;
using ffi::Tensor;
using ffi::TensorView;

namespace {

float* Data(TensorView t) { return static_cast<float*>(t.data_ptr()); }

Tensor Like(TensorView x) {
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
}

cudaStream_t Stream(TensorView x) {
  const DLDevice device = x.device();
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

__global__ void AddScaledKernel(const float* x, const float* y, float alpha, float shift,
                                float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < n) out[i] = x[i] + alpha * y[i] + shift;
}

void Launch(TensorView x, TensorView y, float alpha, float shift, TensorView out) {
  const int64_t n = x.numel();
  AddScaledKernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, Stream(x)>>>(
      Data(x), Data(y), alpha, shift, Data(out), n);
  const cudaError_t error = cudaGetLastError();
  TVM_FFI_CHECK(error == cudaSuccess, RuntimeError) << cudaGetErrorString(error);
}

void AddScaled(TensorView x, TensorView y, double alpha, TensorView out) {
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA, ValueError) << "x must lie on a GPU";
  Launch(x, y, static_cast<float>(alpha), 0, out);
}

Tensor Doubled(TensorView x) {
  Tensor out = Like(x);
  Launch(x, x, 1, 0, out);
  return out;
}

// 4 * x + 1, by way of scratch that is allocated before the result.
Tensor ScratchFirst(TensorView x) {
  const Tensor scratch = Doubled(x);
  Tensor out = Like(x);
  Launch(scratch, scratch, 1, 1, out);
  return out;
}

// x + 2 and x + 1, allocated the other way round.
Array<Tensor> TwoSwapped(TensorView x) {
  Tensor a = Like(x), b = Like(x);
  Launch(x, x, 0, 1, a);
  Launch(x, x, 0, 2, b);
  return {b, a};
}

void Fails(TensorView x, TensorView) {
  TVM_FFI_THROW(ValueError) << "rows must be even, not " << x.size(0);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_scaled, AddScaled)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(doubled, Doubled)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scratch_first, ScratchFirst)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(two_swapped, TwoSwapped)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fails, Fails)
