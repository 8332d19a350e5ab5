// A kernel of your own in a C++ program, as a custom call in stock XLA (a PJRT plugin; no Python):
// SAXPY as CUDA source for GPUs and as C++ source for CPUs, which are compiled when a call is.
//
//   c++ -std=c++17 -Iinclude examples/cpp/own_kernel.cc -Lbuild/release -lxla_gpu -o own_kernel
//
// Runs on the GPU where jax-cuda13-pjrt is installed and a GPU is there, else on xla-cpu-pjrt.
#include <cstdio>

#include "xla_gpu/xla_gpu.hpp"

constexpr char kCuda[] = R"(
__global__ void saxpy(const float* x, const float* y, float* out, float alpha, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = alpha * x[i] + y[i];
})";

constexpr char kHost[] = R"(
void saxpy(const float* x, const float* y, float* out, float alpha, int n) {
  for (int i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
})";

int main() try {
  using xla_gpu::Tensor;
  using Tensors = std::vector<Tensor>;
  xla_gpu::KernelSpec spec;
  spec.name = "saxpy";
  spec.outputs = {{"out", "x"}};           // like x
  spec.scalars = {{"alpha", "f32", 1.0}};  // with a default
  spec.block = xla_gpu::Dim3{256};         // threads
  spec.grid = [](const Tensors& args) {    // blocks, by the arguments' shapes
    return xla_gpu::Dim3{xla_gpu::CeilDiv(args[0].size(), 256)};
  };
  const xla_gpu::Kernel saxpy(spec, {xla_gpu::KernelCode::CudaSource(kCuda, "saxpy"),
                                     xla_gpu::KernelCode::HostSource(kHost, "saxpy")});

  const Tensor x({4}, std::vector<float>{1, 2, 3, 4});
  const Tensor y({4}, std::vector<float>{10, 20, 30, 40});
  xla_gpu::Client client;
  const Tensors results = client.Call(saxpy, {x, y}, {{"alpha", 2.0}, {"n", x.size()}});
  const float* out = results[0].data<float>();
  std::printf("on %s: %g %g %g %g\n", client.platform().c_str(), out[0], out[1], out[2], out[3]);
  return 0;
} catch (const xla_gpu::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
