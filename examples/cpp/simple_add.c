/* An op as a plain function call of the C ABI, in host memory: no XLA, no Python. */
#include <stdio.h>

#include "xla_gpu/xla_gpu.h"

int main(void) {
  float a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40}, c[4] = {0};
  const int64_t dims[] = {4};
  const xla_gpu_tensor args[] = {{sizeof(xla_gpu_tensor), a, XLA_GPU_DTYPE_F32, 1, dims},
                                 {sizeof(xla_gpu_tensor), b, XLA_GPU_DTYPE_F32, 1, dims}};
  const xla_gpu_tensor sum = {sizeof(xla_gpu_tensor), c, XLA_GPU_DTYPE_F32, 1, dims};
  const xla_gpu_call call = {
      sizeof(xla_gpu_call), "simple_add", "Host", NULL, args, 2, &sum, 1, NULL, 0};
  xla_gpu_status* status = xla_gpu_run(&call); /* "CUDA": enqueues on call.stream */
  const int code = xla_gpu_status_code(status);
  if (code == 0) {
    printf("xla_gpu %s: %g %g %g %g\n", xla_gpu_version(), c[0], c[1], c[2], c[3]);
  } else {
    fprintf(stderr, "%s\n", xla_gpu_status_message(status));
  }
  xla_gpu_status_free(status);
  return code;
}
