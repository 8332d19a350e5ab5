"""What a custom-call handler is: its address, and its stages."""

from __future__ import annotations

import ctypes
import pathlib
from _ctypes import CFuncPtr
from collections.abc import Mapping
from typing import Any

from xla_gpu import _lib, _schema
from xla_gpu._errors import InvalidArgumentError, NotFoundError, StatusCode, XlaGpuError

STAGES = ("instantiate", "prepare", "initialize", "execute")

_kept: list[Any] = []  # libraries and functions that XLA may call until the process ends


def keep(function: Any) -> None:
    """Keeps what a function's address is of until the process ends."""
    _kept.append(function)


def _symbol_address(path: str, symbol: str) -> int:
    if not pathlib.Path(path).is_file():
        raise NotFoundError(f"register: the library {path} does not exist")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise XlaGpuError(
            f"register: cannot load {path}: {e}", StatusCode.FAILED_PRECONDITION
        ) from e
    try:
        function = getattr(library, symbol)
    except AttributeError:
        raise NotFoundError(
            f"register: {path} exports no symbol '{symbol}' (nm -D shows those it exports; a C++ "
            'handler needs extern "C")'
        ) from None
    _kept.append(library)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def address_of(handler: Any) -> int:
    """The address of a handler given in any of the forms that `xla_gpu.register` takes."""
    if isinstance(handler, str):
        path, separator, symbol = handler.rpartition(":")
        if not separator or not path or not symbol:
            raise InvalidArgumentError(
                f"register: handler is '{handler}'; a string must be 'path/to/lib.so:symbol'"
            )
        address = _symbol_address(path, symbol)
    elif isinstance(handler, tuple):
        if len(handler) != 2:
            raise InvalidArgumentError(
                f"register: handler is {handler!r}; allowed is (path, symbol)"
            )
        address = _symbol_address(str(handler[0]), str(handler[1]))
    elif isinstance(handler, bool):
        raise InvalidArgumentError(
            f"register: handler is {handler!r}; it must be a function's address"
        )
    elif isinstance(handler, int):
        address = handler
    elif type(handler).__name__ == "PyCapsule":
        address = _lib.capsule_address(handler)
    elif isinstance(handler, CFuncPtr):
        address = ctypes.cast(handler, ctypes.c_void_p).value or 0
        _kept.append(handler)
    else:
        raise InvalidArgumentError(
            f"register: handler is {type(handler).__name__} {handler!r}; allowed are "
            "'path.so:symbol', (path, symbol), an address, a ctypes function and a PyCapsule"
        )
    if not 0 < address < 1 << 64:
        raise InvalidArgumentError(f"register: the address {address:#x} is no function's")
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
            raise InvalidArgumentError(
                f"register: handler has the stages {list(handler)}; allowed are {list(STAGES)}, "
                "and execute must be there"
            )
        return {stage: address_of(one) for stage, one in handler.items()}
    address = address_of(handler)
    if address in _own_typed_handlers():
        return {"instantiate": address, "execute": address}
    return {"execute": address}
