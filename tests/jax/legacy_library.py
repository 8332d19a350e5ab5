"""The C ABI's legacy part as Python functions, and legacy custom calls as jitted JAX functions."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

try:
    from jax import ffi as _ffi
except ImportError:  # before jax 0.5
    from jax.extend import ffi as _ffi

_DTYPE_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
_CAPSULE_NAME = b"xla._CUSTOM_CALL_TARGET"


class LibraryError(RuntimeError):
    """An error status of the C ABI; its text is the status' message."""


@functools.cache
def library() -> ctypes.CDLL:
    """libxla_gpu.so: XLA_GPU_LIBRARY, or that of build/release."""
    default = pathlib.Path(__file__).parents[2] / "build" / "release" / "libxla_gpu.so"
    lib = ctypes.CDLL(os.environ.get("XLA_GPU_LIBRARY", str(default)))
    lib.xla_gpu_status_message.restype = ctypes.c_char_p
    lib.xla_gpu_status_message.argtypes = [ctypes.c_void_p]
    lib.xla_gpu_status_free.argtypes = [ctypes.c_void_p]
    for function in (lib.xla_gpu_handler, lib.xla_gpu_alias):
        function.restype = ctypes.c_void_p
    return lib


def _check(status: int | None) -> None:
    if status is None:
        return
    message = library().xla_gpu_status_message(status).decode()
    library().xla_gpu_status_free(status)
    raise LibraryError(message)


def handler(op: str, api_version: int, platform: str = "Host") -> int:
    """The address of an op's handler; LibraryError if there is none."""
    address = ctypes.c_void_p()
    _check(
        library().xla_gpu_handler(
            op.encode(), platform.encode(), api_version, ctypes.byref(address)
        )
    )
    return address.value


def alias(op: str, api_version: int, opaque: str, platform: str = "Host") -> int:
    """The address of a handler bound to `opaque`; LibraryError where the call is wrong."""
    address = ctypes.c_void_p()
    _check(
        library().xla_gpu_alias(
            op.encode(), platform.encode(), api_version, opaque.encode(), ctypes.byref(address)
        )
    )
    return address.value


def register(target: str, address: int, api_version: int) -> None:
    """Puts a handler into JAX's registry for the CPU, as untyped (1, 2, 3) or typed (4)."""
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new_capsule(address, _CAPSULE_NAME, None)
    if api_version == 4:
        handlers = {"instantiate": capsule, "execute": capsule}
        xla_client.register_custom_call_target(target, handlers, platform="cpu", api_version=1)
    else:
        xla_client.register_custom_call_target(target, capsule, platform="cpu", api_version=0)


def tensor(array: Any) -> dict[str, Any]:
    """The type of an array as opaque texts write it."""
    name = str(np.dtype(array.dtype))
    return {"dtype": _DTYPE_NAMES.get(name, name.replace("int", "i")), "shape": list(array.shape)}


def opaque(op: str, args: Sequence[Any], results: Sequence[Any], **attrs: Any) -> str:
    """The opaque text of a call whose arguments and results have the types of these arrays."""
    return json.dumps(
        {
            "op": op,
            "args": [tensor(a) for a in args],
            "results": [tensor(r) for r in results],
            "attrs": attrs,
        },
        separators=(",", ":"),
    )


def custom_call(
    target: str, api_version: int, backend_config: str, results: Sequence[Any]
) -> Callable[..., Any]:
    """A jitted function that is this custom call alone; it returns a list of arrays."""
    call = _ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results],
        custom_call_api_version=api_version,
        legacy_backend_config=None if api_version == 4 else backend_config,
    )
    return jax.jit(lambda *args: call(*args))
