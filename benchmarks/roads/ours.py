"""The roads of xla_gpu."""

from __future__ import annotations

from roads import KERNEL_CPP, KERNEL_CUDA, road

ALL = "JAX, torch, PyTorch/XLA, torchax, C++"


@road("xla_gpu.host_kernel", "CPU", "jax", packages=("xla_gpu.jax",), takes=ALL)
def host_kernel():
    import xla_gpu

    saxpy = xla_gpu.host_kernel(
        KERNEL_CPP,
        "saxpy",
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: saxpy(x, y, alpha=2.0)


@road(
    "xla_gpu.host_kernel of a numba function",
    "CPU",
    "jax",
    packages=(
        "xla_gpu.jax",
        "numba",
    ),
    takes=ALL,
)
def numba_kernel():
    import numba
    import xla_gpu

    from roads.numba_text import saxpy

    f32 = numba.types.CPointer(numba.float32)

    compiled = numba.cfunc(numba.void(f32, f32, f32, numba.float32, numba.int64))(saxpy)
    kernel = xla_gpu.host_kernel(
        compiled,
        arguments=["x", "y"],
        outputs={"out": "x"},
        scalars={"alpha": "f32", "n": ("i64", lambda x: x.size)},
        name="saxpy",
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: kernel(x, y, alpha=2.0)


@road(
    "xla_gpu.external_kernel (TVM-FFI)",
    "CPU",
    "jax",
    packages=(
        "xla_gpu.jax",
        "tvm_ffi",
    ),
    takes=ALL,
)
def tvm_ffi_kernel():
    import tvm_ffi.cpp
    import xla_gpu

    wrapper = """
    void call(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out, double a) {
      saxpy(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
            static_cast<float*>(out.data_ptr()), a, x.numel());
    }
    """
    module = tvm_ffi.cpp.load_inline("saxpy", cpp_sources=KERNEL_CPP + wrapper, functions="call")
    saxpy = xla_gpu.external_kernel(
        module.call,
        arguments=["x", "y"],
        outputs={"out": "x"},
        scalars={"a": "f64"},
        platform="Host",
        owned=False,
        name="saxpy",
        gradient=lambda args, results, gradients, a: (a * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: saxpy(x, y, a=2.0)


@road("xla_gpu.host_kernel", "CPU", "torch", packages=("xla_gpu.torch",), takes=ALL)
def torch_host_kernel():
    import xla_gpu

    saxpy = xla_gpu.host_kernel(
        KERNEL_CPP,
        "saxpy",
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
    )
    return lambda x, y: saxpy(x, y, alpha=2.0)


@road("xla_gpu.cuda_kernel", "GPU", "jax", packages=("xla_gpu.jax",), takes=ALL)
def cuda_kernel():
    import xla_gpu

    saxpy = xla_gpu.cuda_kernel(
        KERNEL_CUDA,
        "saxpy",
        grid=lambda x: xla_gpu.cdiv(x.size, 256),
        block=256,
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: saxpy(x, y, alpha=2.0)


@road("xla_gpu.cuda_kernel", "GPU", "torch", packages=("xla_gpu.torch",), takes=ALL)
def torch_cuda_kernel():
    import xla_gpu

    saxpy = xla_gpu.cuda_kernel(
        KERNEL_CUDA,
        "saxpy",
        grid=lambda x: xla_gpu.cdiv(x.size, 256),
        block=256,
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
    )
    return lambda x, y: saxpy(x, y, alpha=2.0)


@road(
    "xla_gpu.triton_kernel",
    "GPU",
    "jax",
    packages=(
        "xla_gpu.jax",
        "triton",
    ),
    takes=ALL,
)
def triton_kernel():
    import xla_gpu

    from roads.triton_text import saxpy

    kernel = xla_gpu.triton_kernel(
        saxpy,
        grid=lambda x: xla_gpu.cdiv(x.size, 1024),
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
        constexprs={"BLOCK": 1024},
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: kernel(x, y, alpha=2.0)


@road(
    "xla_gpu.external_kernel (TVM-FFI)",
    "GPU",
    "jax",
    packages=(
        "xla_gpu.jax",
        "tvm_ffi",
    ),
    takes=ALL,
)
def tvm_ffi_cuda_kernel():
    import tvm_ffi.cpp
    import xla_gpu

    wrapper = """
    void call(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out, double a) {
      auto stream = TVMFFIEnvGetStream(x.device().device_type, x.device().device_id);
      saxpy<<<(x.numel() + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
          static_cast<float*>(out.data_ptr()), a, x.numel());
    }
    """
    module = tvm_ffi.cpp.load_inline("saxpy", cuda_sources=KERNEL_CUDA + wrapper, functions="call")
    saxpy = xla_gpu.external_kernel(
        module.call,
        arguments=["x", "y"],
        outputs={"out": "x"},
        scalars={"a": "f64"},
        owned=False,
        capture=True,
        name="saxpy",
        gradient=lambda args, results, gradients, a: (a * gradients[0], gradients[0]),
        vmap="broadcast_all",
        sharding="i, i -> i",
    )
    return lambda x, y: saxpy(x, y, a=2.0)
