"""libxla_gpu.so through ctypes: where it is, its C ABI (xla_gpu.h), its Status as errors."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

from xla_gpu._errors import InvalidArgumentError, NotFoundError, StatusCode, XlaGpuError, make_error

LIBRARY_NAME = "libxla_gpu.so"

# Held while a handler is registered, in whatever runtime, and while the process forks, so that no
# child finds it taken. One for all, and reentrant, because registrations call one another.
registration_lock = threading.RLock()
os.register_at_fork(
    before=registration_lock.acquire,
    after_in_parent=registration_lock.release,
    after_in_child=registration_lock.release,
)


class Tensor(ctypes.Structure):
    """xla_gpu_tensor."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class Attr(ctypes.Structure):
    """xla_gpu_attr."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("i", ctypes.c_int64),
        ("f", ctypes.c_double),
        ("s", ctypes.c_char_p),
        ("s_size", ctypes.c_size_t),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("ints_size", ctypes.c_size_t),
    ]


class Call(ctypes.Structure):
    """xla_gpu_call."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("op", ctypes.c_char_p),
        ("platform", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("args", ctypes.POINTER(Tensor)),
        ("num_args", ctypes.c_size_t),
        ("results", ctypes.POINTER(Tensor)),
        ("num_results", ctypes.c_size_t),
        ("attrs", ctypes.POINTER(Attr)),
        ("num_attrs", ctypes.c_size_t),
    ]


# ctypes cuts an int that does not fit its field, and a text at its first NUL.


def c_int(value: int, what: str, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
    """The int, for a field that holds `low` to `high`; InvalidArgumentError names `what`."""
    if not low <= value <= high:
        raise InvalidArgumentError(f"{what} is {value}; it must be {low} to {high}")
    return value


def c_address(value: int, what: str) -> int:
    """The address, stream or handle, which fits a pointer."""
    return c_int(value, what, 0, (1 << 64) - 1)


def c_text(text: str, what: str) -> bytes:
    """The text as C takes it; InvalidArgumentError where C would see another."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"{what} is {text!r}: {e.reason}; it must be text") from None
    if b"\0" in encoded:
        raise InvalidArgumentError(f"{what} is {text!r}; it must not hold a NUL character")
    return encoded


def library_candidates() -> list[pathlib.Path]:
    """Where the library is looked for, in order.

    XLA_GPU_LIBRARY alone if it is set; else beside this package (a wheel), then build/release of
    the source checkout that holds this file.
    """
    named = os.environ.get("XLA_GPU_LIBRARY")
    if named:
        return [pathlib.Path(named)]
    package = pathlib.Path(__file__).resolve().parent
    return [package / LIBRARY_NAME, package.parents[1] / "build" / "release" / LIBRARY_NAME]


@functools.cache
def library_path() -> str:
    """The path of the library that this process uses; XlaGpuError (NOT_FOUND) if there is none."""
    candidates = library_candidates()
    for path in candidates:
        if path.is_file():
            return str(path)
    tried = ", ".join(map(str, candidates))
    raise NotFoundError(
        f"{LIBRARY_NAME} was not found (tried {tried}); install the wheel, run 'make build' in a "
        "checkout, or set XLA_GPU_LIBRARY to the library's path"
    )


def library_dir() -> str:
    """The folder of libxla_gpu.so, to link C and C++ with, and of its packages for other builds.

    In a wheel it holds cmake/ (xla_gpu_ROOT may be this folder) and pkgconfig/, in a build cmake/.
    XlaGpuError (NOT_FOUND) where there is no library.
    """
    return str(pathlib.Path(library_path()).parent)


def include_dir() -> str:
    """The folder of xla_gpu/xla_gpu.h and xla_gpu/xla_gpu.hpp: a wheel's, else the checkout's.

    XlaGpuError (NOT_FOUND) where neither is there.
    """
    package = pathlib.Path(__file__).resolve().parent
    candidates = [package / "include", package.parents[1] / "include"]
    for folder in candidates:
        if (folder / "xla_gpu" / "xla_gpu.h").is_file():
            return str(folder)
    raise NotFoundError(f"xla_gpu/xla_gpu.h was not found in {', '.join(map(str, candidates))}")


@functools.cache
def load() -> ctypes.CDLL:
    """The loaded library with its functions declared.

    XlaGpuError (FAILED_PRECONDITION) where the file is no library, or not this package's.
    """
    path = library_path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise XlaGpuError(f"cannot load {path}: {e}", StatusCode.FAILED_PRECONDITION) from e
    number, text, pointer = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
    call, out = ctypes.POINTER(Call), ctypes.POINTER(ctypes.c_void_p)
    handler = [text, text, number]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "xla_gpu_status_code": (number, [pointer]),
        "xla_gpu_status_message": (text, [pointer]),
        "xla_gpu_status_free": (None, [pointer]),
        "xla_gpu_string_free": (None, [pointer]),
        "xla_gpu_version": (text, []),
        "xla_gpu_run": (pointer, [call]),
        "xla_gpu_infer": (pointer, [call, out]),
        "xla_gpu_ops_json": (pointer, []),
        "xla_gpu_define_kernel": (pointer, [text, ctypes.c_size_t, out]),
        "xla_gpu_profile_start": (pointer, []),
        "xla_gpu_profile_stop": (pointer, [out]),
        "xla_gpu_cache_get": (pointer, [text, ctypes.c_size_t, out]),
        "xla_gpu_cache_put": (pointer, [text, ctypes.c_size_t, text, text]),
        "xla_gpu_opaque": (pointer, [call, out]),
        "xla_gpu_handler": (pointer, [*handler, out]),
        "xla_gpu_alias": (pointer, [*handler, text, out]),
        "xla_gpu_check_handler": (pointer, [text, pointer, text, number, number, number, out]),
        "xla_gpu_register_pjrt": (pointer, [pointer, text, text, pointer, text, number]),
        "xla_gpu_pjrt_compat_info": (pointer, [out]),
    }
    for name, (restype, argtypes) in signatures.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise XlaGpuError(
                f"{path} is no {LIBRARY_NAME} of this package's version: it does not export "
                f"{name}; set XLA_GPU_LIBRARY to one that is, or unset it",
                StatusCode.FAILED_PRECONDITION,
            ) from None
        function.restype = restype
        function.argtypes = argtypes
    return lib


def check(status: int | None) -> None:
    """Raises the error that a returned xla_gpu_status stands for, and frees it."""
    if not status:
        return
    lib = load()
    code = lib.xla_gpu_status_code(status)
    message = lib.xla_gpu_status_message(status).decode("utf-8", "replace")
    lib.xla_gpu_status_free(status)
    raise make_error(code, message)


def take_string(address: int | None) -> str:
    """The text of a char* that the library gave away; frees it."""
    if not address:
        return ""
    text = ctypes.string_at(address).decode("utf-8")
    load().xla_gpu_string_free(address)
    return text


_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_CAPSULE_NAME = b"xla._CUSTOM_CALL_TARGET"  # JAX's


def capsule_of(address: int, name: bytes = _CAPSULE_NAME) -> object:
    """A PyCapsule with an address: of a handler, as jax.ffi.register_ffi_target takes it.

    `name`: a constant, to which the capsule points.
    """
    return _new_capsule(address, name, None)


def capsule_address(capsule: object) -> int:
    """What a PyCapsule holds."""
    return _capsule_pointer(capsule, _capsule_name(capsule)) or 0


def text_of(function: Callable[..., int | None], *args: Any) -> str:
    """The text that a function of the C ABI gives by its last argument."""
    text = ctypes.c_void_p()
    check(function(*args, ctypes.byref(text)))
    return take_string(text.value)


def handler_address(op: str, platform: str, api_version: int, opaque: str | None = None) -> int:
    """The address of the function that XLA calls for `op`.

    With `opaque`, the text of `_ops.opaque`, of a handler that is bound to it (xla_gpu_alias).
    """
    handler = ctypes.c_void_p()
    version = c_int(api_version, "api_version", -(1 << 31), (1 << 31) - 1)
    args = [c_text(op, "op"), c_text(platform, "platform"), version]
    function = load().xla_gpu_handler
    if opaque is not None:
        args.append(c_text(opaque, "opaque"))
        function = load().xla_gpu_alias
    check(function(*args, ctypes.byref(handler)))
    assert handler.value is not None  # a Status of success comes with an address
    return handler.value
