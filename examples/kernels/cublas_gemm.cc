// A launcher of cuBLAS for XLA: out = op(a) op(b) of row-major f32 matrices. cublas_gemm.py builds
// and calls it; xla_gpu gives it XLA's stream and buffers.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

namespace {

constexpr int kMaxDevices = 64;

struct Handle {
  std::mutex mutex;  // a handle is for one thread at a time
  cublasHandle_t cublas = nullptr;
} handles[kMaxDevices];

// The handle of the current device, which it keeps until the process ends. XLA may be recording a
// graph: what cuBLAS allocates for itself is no part of it.
cublasStatus_t Open(Handle& handle) {
  if (handle.cublas != nullptr) return CUBLAS_STATUS_SUCCESS;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  const cublasStatus_t status = cublasCreate(&handle.cublas);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

}  // namespace

// a is [m, k], or with a_transposed [k, m]; b is [k, n], or [n, k]. Gives cuBLAS's status.
extern "C" int gemm(cudaStream_t stream, const float* a, const float* b, float* out,
                    void* workspace, size_t workspace_bytes, int m, int n, int k, bool a_transposed,
                    bool b_transposed) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  Handle& handle = handles[device];
  const std::lock_guard lock(handle.mutex);
  cublasStatus_t status = Open(handle);
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle.cublas, stream);
  // Of the call: cuBLAS's own may not be shared by graphs that run at the same time. It wants a
  // multiple of 256, and XLA's addresses are multiples of 128.
  void* aligned = std::align(256, workspace_bytes - 256, workspace, workspace_bytes);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasSetWorkspace(handle.cublas, aligned, workspace_bytes);
  }
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // To cuBLAS, whose matrices are column-major, a row-major one is its transpose: out' = b' a'.
  const float one = 1, zero = 0;
  return cublasSgemm(handle.cublas, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                     a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, b,
                     b_transposed ? k : n, a, a_transposed ? m : k, &zero, out, n);
}
