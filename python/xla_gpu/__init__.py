"""Custom kernels for stock XLA: paged attention, cache updates, and the road for your own.

`xla_gpu.jax` holds the ops for JAX. `register` puts any handler into the XLA runtimes of this
process. Importing this package loads neither a framework nor the library.
"""

from __future__ import annotations

from xla_gpu._errors import (
    InvalidArgumentError,
    NotFoundError,
    StatusCode,
    UnimplementedError,
    XlaGpuError,
)
from xla_gpu._functions import external_kernel, host_kernel
from xla_gpu._kernel import Kernel, cdiv
from xla_gpu._kernels import cubin_kernel, cuda_kernel
from xla_gpu._lib import include_dir, library_dir, library_path
from xla_gpu._profile import KernelTimes, Profile, profile
from xla_gpu._register import handler, register
from xla_gpu._schema import ops
from xla_gpu._torch_kernel import torch_kernel
from xla_gpu._triton import TritonKernel, triton_kernel

__all__ = [
    "InvalidArgumentError",
    "Kernel",
    "KernelTimes",
    "NotFoundError",
    "Profile",
    "StatusCode",
    "TritonKernel",
    "UnimplementedError",
    "XlaGpuError",
    "cdiv",
    "cubin_kernel",
    "cuda_kernel",
    "external_kernel",
    "handler",
    "host_kernel",
    "include_dir",
    "library_dir",
    "library_path",
    "library_version",
    "ops",
    "profile",
    "register",
    "torch_kernel",
    "triton_kernel",
]

__version__ = "0.1.0"


def library_version() -> str:
    """The version of the loaded libxla_gpu.so, e.g. "0.1.0"."""
    from xla_gpu import _lib

    version: bytes = _lib.load().xla_gpu_version()
    return version.decode()
