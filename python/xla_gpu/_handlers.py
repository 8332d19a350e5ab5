"""What a custom-call handler is: its address, and its stages."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Mapping
from typing import Any

from xla_gpu import _lib, _schema
from xla_gpu._errors import XlaGpuError, make_error

STAGES = ("instantiate", "prepare", "initialize", "execute")

_kept: list[ctypes.CDLL] = []  # libraries whose handlers XLA may call until the process ends


def _symbol_address(path: str, symbol: str) -> int:
    if not pathlib.Path(path).is_file():
        raise make_error(5, f"register: the library {path} does not exist")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise XlaGpuError(f"register: cannot load {path}: {e}", 9) from e
    try:
        function = getattr(library, symbol)
    except AttributeError:
        raise make_error(
            5,
            f"register: {path} exports no symbol '{symbol}' (nm -D shows those it exports; a C++ "
            'handler needs extern "C")',
        ) from None
    _kept.append(library)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _capsule_address(capsule: Any) -> int:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return get_pointer(capsule, get_name(capsule))


def address_of(handler: Any) -> int:
    """The address of a handler given in any of the forms that `xla_gpu.register` takes."""
    if isinstance(handler, str):
        path, separator, symbol = handler.rpartition(":")
        if not separator or not path or not symbol:
            raise make_error(
                3, f"register: handler is '{handler}'; a string must be 'path/to/lib.so:symbol'"
            )
        address = _symbol_address(path, symbol)
    elif isinstance(handler, tuple):
        if len(handler) != 2:
            raise make_error(3, f"register: handler is {handler!r}; allowed is (path, symbol)")
        address = _symbol_address(str(handler[0]), str(handler[1]))
    elif isinstance(handler, bool):
        raise make_error(3, f"register: handler is {handler!r}; it must be a function's address")
    elif isinstance(handler, int):
        address = handler
    elif type(handler).__name__ == "PyCapsule":
        address = _capsule_address(handler)
    elif isinstance(handler, ctypes._CFuncPtr):  # what ctypes.CDLL gives and CFUNCTYPE makes
        address = ctypes.cast(handler, ctypes.c_void_p).value or 0
        _kept.append(handler)  # type: ignore[arg-type]
    else:
        raise make_error(
            3,
            f"register: handler is {type(handler).__name__} {handler!r}; allowed are "
            "'path.so:symbol', (path, symbol), an address, a ctypes function and a PyCapsule",
        )
    if not 0 < address < 1 << 64:
        raise make_error(3, f"register: the address {address:#x} is no function's")
    return address


def _own_typed_handlers() -> set[int]:
    return {
        _lib.handler_address(op.name, platform, 4)
        for op in _schema.schemas().values()
        for platform in op.platforms
    }


def stages_of(handler: Any) -> dict[str, int]:
    """Addresses by stage: of a dict stage -> handler, or of one handler.

    This library's own handlers serve two stages; any other is taken as execute.
    """
    if isinstance(handler, Mapping):
        unknown = [stage for stage in handler if stage not in STAGES]
        if unknown or "execute" not in handler:
            raise make_error(
                3,
                f"register: handler has the stages {list(handler)}; allowed are {list(STAGES)}, "
                "and execute must be there",
            )
        return {stage: address_of(one) for stage, one in handler.items()}
    address = address_of(handler)
    if address in _own_typed_handlers():
        return {"instantiate": address, "execute": address}
    return {"execute": address}
