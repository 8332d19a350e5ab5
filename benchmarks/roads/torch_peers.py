"""Other roads into torch."""

from __future__ import annotations

from roads import KERNEL_CPP, KERNEL_CUDA, road


@road("torch, no kernel", "CPU", "torch", takes="torch", is_kernel=False)
def plain_torch():
    import torch

    return lambda x, y: torch.add(y, x, alpha=2.0)


@road("torch load_inline", "CPU", "torch", takes="torch")
def load_inline():
    from torch.utils.cpp_extension import load_inline as load

    wrapper = """
    #include <torch/extension.h>
    torch::Tensor call(torch::Tensor x, torch::Tensor y, double alpha) {
      auto out = torch::empty_like(x);
      saxpy(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), alpha, x.numel());
      return out;
    }
    """
    module = load(name="saxpy", cpp_sources=KERNEL_CPP + wrapper, functions=["call"])
    return lambda x, y: module.call(x, y, 2.0)


@road("torch, no kernel", "GPU", "torch", takes="torch", is_kernel=False)
def plain_torch_gpu():
    import torch

    return lambda x, y: torch.add(y, x, alpha=2.0)


@road("torch load_inline", "GPU", "torch", takes="torch")
def load_inline_cuda():
    from torch.utils.cpp_extension import load_inline as load

    wrapper = """
    #include <ATen/cuda/CUDAContext.h>
    #include <torch/extension.h>
    torch::Tensor call(torch::Tensor x, torch::Tensor y, double alpha) {
      auto out = torch::empty_like(x);
      long n = x.numel();
      saxpy<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
          x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), alpha, n);
      return out;
    }
    """
    module = load(
        name="saxpy",
        cpp_sources="torch::Tensor call(torch::Tensor x, torch::Tensor y, double alpha);",
        cuda_sources=KERNEL_CUDA + wrapper,
        functions=["call"],
    )
    return lambda x, y: module.call(x, y, 2.0)


@road("torch.cuda._compile_kernel", "GPU", "torch", takes="torch", compiles="GPU")
def compile_kernel():
    import torch

    # Since torch 2.11 it passes Python's numbers as C's double and int alone.
    source = KERNEL_CUDA.replace("float alpha, long n", "double alpha, int n")
    kernel = torch.cuda._compile_kernel(source, "saxpy")

    def saxpy(x, y):
        out = torch.empty_like(x)
        n = x.numel()
        kernel(((n + 255) // 256, 1, 1), (256, 1, 1), (x, y, out, 2.0, n))
        return out

    return saxpy


@road("Triton's own launch", "GPU", "torch", packages=("triton",), takes="torch", compiles="GPU")
def triton_launch():
    import torch
    import triton

    from roads.triton_text import saxpy as kernel

    def saxpy(x, y):
        out = torch.empty_like(x)
        n = x.numel()
        kernel[(triton.cdiv(n, 1024),)](x, y, out, 2.0, n, BLOCK=1024)
        return out

    return saxpy
