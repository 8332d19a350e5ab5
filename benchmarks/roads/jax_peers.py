"""Other roads into JAX."""

from __future__ import annotations

from roads import KERNEL_CPP, KERNEL_CUDA, build, road


@road("jax.numpy, no kernel", "CPU", "jax", takes="JAX", is_kernel=False)
def plain_jax():
    return lambda x, y: 2.0 * x + y


@road("jax.ffi, C++ handler", "CPU", "jax", takes="JAX; C++ hosts, by more code")
def raw_ffi():
    import ctypes

    import jax
    import numpy as np

    handler = """
    #include "xla/ffi/api/ffi.h"
    namespace ffi = xla::ffi;
    static ffi::Error Run(float alpha, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> y,
                          ffi::ResultBuffer<ffi::F32> out) {
      saxpy(x.typed_data(), y.typed_data(), out->typed_data(), alpha, x.element_count());
      return ffi::Error::Success();
    }
    XLA_FFI_DEFINE_HANDLER_SYMBOL(Saxpy, Run,
                                  ffi::Ffi::Bind()
                                      .Attr<float>("alpha")
                                      .Arg<ffi::Buffer<ffi::F32>>()
                                      .Arg<ffi::Buffer<ffi::F32>>()
                                      .Ret<ffi::Buffer<ffi::F32>>());
    """
    compiler = ["g++", "-std=c++17", "-O2", "-fPIC", f"-I{jax.ffi.include_dir()}"]
    library = ctypes.CDLL(build(compiler, KERNEL_CPP + handler, ".cc"))
    jax.ffi.register_ffi_target("saxpy", jax.ffi.pycapsule(library.Saxpy), platform="cpu")

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call("saxpy", out, vmap_method="broadcast_all")
        return call(x, y, alpha=np.float32(2.0))

    return saxpy


@road("jax-tvm-ffi", "CPU", "jax", packages=("jax_tvm_ffi",), takes="JAX")
def jax_tvm_ffi():
    import jax
    import jax_tvm_ffi
    import tvm_ffi.cpp

    wrapper = """
    void call(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out, double a) {
      saxpy(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
            static_cast<float*>(out.data_ptr()), a, x.numel());
    }
    """
    module = tvm_ffi.cpp.load_inline("saxpy", cpp_sources=KERNEL_CPP + wrapper, functions="call")
    jax_tvm_ffi.register_ffi_target(
        "saxpy", module.call, ["args", "rets", "attrs.a"], platform="cpu"
    )

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("saxpy", out, vmap_method="broadcast_all")(x, y, a=2.0)

    return saxpy


@road("jax.pure_callback, numba", "CPU", "jax", packages=("numba",), takes="JAX")
def pure_callback():
    import jax
    import numba
    import numpy as np

    from roads.numba_text import saxpy as loop

    compiled = numba.njit(loop)

    def run(x, y):
        x, y = np.asarray(x), np.asarray(y)
        out = np.empty_like(x)
        compiled(x.ravel(), y.ravel(), out.ravel(), np.float32(2.0), x.size)
        return out

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(run, out, x, y, vmap_method="broadcast_all")

    return saxpy


@road("jax.numpy, no kernel", "GPU", "jax", takes="JAX", is_kernel=False)
def plain_jax_gpu():
    return lambda x, y: 2.0 * x + y


@road("jax.ffi, C++ handler", "GPU", "jax", takes="JAX; C++ hosts, by more code")
def raw_cuda_ffi():
    import ctypes

    import jax
    import numpy as np

    handler = """
    #include <cuda_runtime.h>
    #include "xla/ffi/api/ffi.h"
    namespace ffi = xla::ffi;
    static ffi::Error Run(cudaStream_t stream, float alpha, ffi::Buffer<ffi::F32> x,
                          ffi::Buffer<ffi::F32> y, ffi::ResultBuffer<ffi::F32> out) {
      long n = x.element_count();
      saxpy<<<(n + 255) / 256, 256, 0, stream>>>(x.typed_data(), y.typed_data(), out->typed_data(),
                                                 alpha, n);
      if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
        return ffi::Error::Internal(cudaGetErrorString(error));
      }
      return ffi::Error::Success();
    }
    XLA_FFI_DEFINE_HANDLER_SYMBOL(Saxpy, Run,
                                  ffi::Ffi::Bind()
                                      .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                      .Attr<float>("alpha")
                                      .Arg<ffi::Buffer<ffi::F32>>()
                                      .Arg<ffi::Buffer<ffi::F32>>()
                                      .Ret<ffi::Buffer<ffi::F32>>(),
                                  {ffi::Traits::kCmdBufferCompatible});
    """
    include = f"-I{jax.ffi.include_dir()}"
    compiler = ["nvcc", "-std=c++17", "-O2", "-arch=native", "-Xcompiler=-fPIC", include]
    library = ctypes.CDLL(build(compiler, KERNEL_CUDA + handler, ".cu"))
    jax.ffi.register_ffi_target("raw_saxpy", jax.ffi.pycapsule(library.Saxpy), platform="CUDA")

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call("raw_saxpy", out, vmap_method="broadcast_all")
        return call(x, y, alpha=np.float32(2.0))

    return saxpy


@road("jax-tvm-ffi", "GPU", "jax", packages=("jax_tvm_ffi",), takes="JAX")
def jax_tvm_ffi_cuda():
    import jax
    import jax_tvm_ffi
    import tvm_ffi.cpp

    wrapper = """
    void call(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out, double a) {
      auto stream = TVMFFIEnvGetStream(x.device().device_type, x.device().device_id);
      saxpy<<<(x.numel() + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
          static_cast<float*>(out.data_ptr()), a, x.numel());
    }
    """
    module = tvm_ffi.cpp.load_inline("saxpy", cuda_sources=KERNEL_CUDA + wrapper, functions="call")
    spec = ["args", "rets", "attrs.a"]
    jax_tvm_ffi.register_ffi_target(
        "saxpy", module.call, spec, platform="gpu", allow_cuda_graph=True
    )

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("saxpy", out, vmap_method="broadcast_all")(x, y, a=2.0)

    return saxpy


@road("jax-triton", "GPU", "jax", packages=("jax_triton",), takes="JAX", compiles="GPU")
def jax_triton():
    import jax
    import jax_triton
    import triton

    from roads.triton_text import saxpy_out_last

    def saxpy(x, y):
        return jax_triton.triton_call(
            x,
            y,
            2.0,
            x.size,
            kernel=saxpy_out_last,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=triton.cdiv(x.size, 1024),
            BLOCK=1024,
        )

    return saxpy


@road("Pallas (Triton)", "GPU", "jax", takes="JAX, torchax", packages=("jax.experimental.pallas",))
def pallas():
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(x, y, out):
        out[...] = 2.0 * x[...] + y[...]

    def saxpy(x, y):
        block = pl.BlockSpec((min(1024, x.size),), lambda i: (i,))
        call = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(pl.cdiv(x.size, 1024),),
            in_specs=[block, block],
            out_specs=block,
            compiler_params=plgpu.CompilerParams(),
        )
        return call(x, y)

    return saxpy


@road("Warp, jax_kernel", "GPU", "jax", packages=("warp",), takes="JAX; torch, by other code")
def warp_kernel():
    import warp as wp

    from roads.warp_text import saxpy as kernel

    wp.init()
    call = wp.jax_kernel(kernel)
    return lambda x, y: call(x, y, 2.0)[0]


@road("CuPy, buffer_callback", "GPU", "jax", packages=("cupy",), takes="JAX", compiles="GPU")
def cupy_callback():
    import cupy
    import jax
    import numpy as np
    from jax.experimental.buffer_callback import buffer_callback

    kernel = cupy.RawKernel(KERNEL_CUDA.replace("__global__", 'extern "C" __global__'), "saxpy")

    def run(ctx, out, x, y):
        with cupy.cuda.ExternalStream(ctx.stream):
            n = x.size if hasattr(x, "size") else int(np.prod(x.shape))
            views = [cupy.asarray(each) for each in (x, y, out)]
            kernel(((n + 255) // 256,), (256,), (*views, np.float32(2.0), np.int64(n)))

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = buffer_callback(
            run, out, vmap_method="broadcast_all", command_buffer_compatible=True
        )
        return call(x, y)

    return saxpy


@road("CuTe DSL, cutlass_call", "GPU", "jax", packages=("cutlass.jax",), takes="JAX")
def cutlass_call():
    import jax
    from cutlass.jax import cutlass_call as call

    from roads.cute_text import launch

    def saxpy(x, y):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return call(launch, output_shape_dtype=out)(x, y)

    return saxpy
