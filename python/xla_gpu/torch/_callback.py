"""How the library calls functions on torch tensors (src/ops/user_kernel/dlpack_call.h)."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_gpu import _handlers, _kernel, _lib
from xla_gpu._errors import StatusCode, XlaGpuError
from xla_gpu._ops import TensorSpec

_CTYPES: dict[str, Any] = {
    "pred": ctypes.c_bool,
    **{f"i{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
# By DLPack's code and bits what not every torch reads: such a tensor is made of ints, and viewed.
_VIEWS = {
    (1, 16): torch.uint16,
    (1, 32): torch.uint32,
    (1, 64): torch.uint64,
    (10, 8): torch.float8_e4m3fn,
    (12, 8): torch.float8_e5m2,
}
_CODES: tuple[tuple[Any, StatusCode], ...] = (
    ((MemoryError, torch.cuda.OutOfMemoryError), StatusCode.RESOURCE_EXHAUSTED),
    (NotImplementedError, StatusCode.UNIMPLEMENTED),
    ((ValueError, TypeError, IndexError), StatusCode.INVALID_ARGUMENT),
)


class _Call(ctypes.Structure):
    """DlpackCall."""

    _fields_ = [
        ("stream", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("in_use", ctypes.c_void_p),
        ("taken", ctypes.c_int64),
        ("error", ctypes.c_char * 4080),
    ]


class _Managed(ctypes.Structure):
    """The part of DLPack's tensor that is looked at here."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    ]


def address_of(
    fn: Callable[..., Any],
    dtypes: Sequence[str | None],
    by_name: Sequence[str],
    returned: Sequence[str],
) -> int:
    """The address of a C function that calls `fn`, which lives as long as the process.

    Args:
      fn: takes torch tensors, None for absent ones, and numbers.
      dtypes: of each parameter: of a number its dtype, else None; outputs that it returns are last.
      by_name: the names of its last parameters, where it takes them so.
      returned: the names of the outputs that it returns.
    """
    num_taken = len(dtypes) - len(returned)
    num_positional = num_taken - len(by_name)
    tensors = [i for i, dtype in enumerate(dtypes) if dtype is None]

    def run(call: _Call, values: list[Any]) -> None:
        for i in tensors:
            if values[i] is not None:
                values[i] = _tensor(values[i])
                call.taken += 1
        given = values[:num_positional]
        named = dict(zip(by_name, values[num_positional:num_taken], strict=True))
        with torch.no_grad(), _stream_of(call):
            result = fn(*given, **named)
            if returned:
                _collect(result, returned, values[num_taken:])

    # The frames of `run` are gone, and what it held, when it is asked what is still in use.
    def called(address: int, *values: Any) -> int:
        call = _Call.from_address(address)
        try:
            run(call, list(values))
            in_use = ctypes.c_int64.from_address(call.in_use)
            if in_use.value:
                gc.collect()  # what only a cycle of references keeps is not kept
        except BaseException as error:  # whatever it is, nobody above would see it
            call.error = _text(error).encode("utf-8", "replace")[: _Call.error.size - 1]
            return _code(error)
        return 0

    kinds = [ctypes.c_void_p if dtype is None else _CTYPES[dtype] for dtype in dtypes]
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *kinds)(called)
    return _handlers.address_of(function)


def _tensor(address: int) -> torch.Tensor:
    managed = _Managed.from_address(address)
    view = _VIEWS.get((managed.code, managed.bits))
    if view is not None:
        managed.code = 0
    tensor = torch.from_dlpack(_lib.capsule_of(address, b"dltensor"))
    return tensor if view is None else tensor.view(view)


def _stream_of(call: _Call) -> contextlib.AbstractContextManager[Any]:
    """Makes the call's device and stream torch's current ones."""
    if call.device_type == 1:  # the CPU
        return contextlib.nullcontext()
    stream: Any = torch.cuda.ExternalStream(call.stream or 0, device=call.device)
    context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context


def _collect(result: Any, names: Sequence[str], outputs: Sequence[torch.Tensor]) -> None:
    """Copies what a function returned to the outputs."""
    results = result if isinstance(result, tuple | list) else (result,)
    if len(results) != len(outputs):
        raise ValueError(
            f"the function returned {len(results)} values; it must return {', '.join(names)}"
        )
    for name, given, output in zip(names, results, outputs, strict=True):
        if not isinstance(given, torch.Tensor):
            raise TypeError(
                f"the function returned {type(given).__name__} for {name}; it must return "
                f"{_type_of(output)}"
            )
        if (given.dtype, given.shape, given.device) != (output.dtype, output.shape, output.device):
            raise ValueError(
                f"the function returned {_type_of(given)} for {name}; it must return "
                f"{_type_of(output)}"
            )
        output.copy_(given)


def _type_of(tensor: torch.Tensor) -> str:
    dtype = _kernel.dtype_name(tensor.dtype) or str(tensor.dtype)
    return f"{TensorSpec(dtype, tuple(tensor.shape))} on {tensor.device}"


def _text(error: BaseException) -> str:
    """Its type and text, and the line of the function that it came from."""
    kind = type(error).__name__
    try:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f" ({f.filename}:{f.lineno})" for f in frames if f.filename != __file__), "")
        return f"{kind}: {error}{line}"
    except BaseException:  # an exception may have a text that fails
        return kind


def _code(error: BaseException) -> int:
    if isinstance(error, XlaGpuError):
        return error.code
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), StatusCode.INTERNAL)
