"""What a custom-call handler is: its address, and its stages."""

from __future__ import annotations

import ctypes
import pathlib
from _ctypes import CFuncPtr
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xla_gpu import _lib, _schema
from xla_gpu._errors import InvalidArgumentError, NotFoundError, StatusCode, XlaGpuError

STAGES = ("instantiate", "prepare", "initialize", "execute")
STATE_TYPE = ("type_id", "type_info")  # of what instantiate makes

_kept: list[Any] = []  # libraries and functions that XLA may call until the process ends


def keep(function: Any) -> None:
    """Keeps what a function's address is of until the process ends."""
    _kept.append(function)


def _symbol_address(said: str, path: str, symbol: str) -> int:
    if not pathlib.Path(path).is_file():
        raise NotFoundError(f"{said}: the library {path} does not exist")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise XlaGpuError(f"{said}: cannot load {path}: {e}", StatusCode.FAILED_PRECONDITION) from e
    try:
        function = getattr(library, symbol)
    except AttributeError:
        raise NotFoundError(
            f"{said}: {path} exports no symbol '{symbol}' (nm -D shows those it exports; a C++ "
            'handler needs extern "C")'
        ) from None
    _kept.append(library)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def address_of(handler: Any, said: str = "register: handler") -> int:
    """The address of a handler given in any of the forms that `xla_gpu.register` takes.

    `said` is how errors call it.
    """
    if isinstance(handler, str):
        path, separator, symbol = handler.rpartition(":")
        if not separator or not path or not symbol:
            raise InvalidArgumentError(
                f"{said} is '{handler}'; a string must be 'path/to/lib.so:symbol'"
            )
        address = _symbol_address(said, path, symbol)
    elif isinstance(handler, tuple):
        if len(handler) != 2:
            raise InvalidArgumentError(f"{said} is {handler!r}; allowed is (path, symbol)")
        address = _symbol_address(said, str(handler[0]), str(handler[1]))
    elif isinstance(handler, bool):
        raise InvalidArgumentError(f"{said} is {handler!r}; it must be a function's address")
    elif isinstance(handler, int):
        address = handler
    elif type(handler).__name__ == "PyCapsule":
        address = _lib.capsule_address(handler)
    elif isinstance(handler, CFuncPtr):
        address = ctypes.cast(handler, ctypes.c_void_p).value or 0
        _kept.append(handler)
    else:
        raise InvalidArgumentError(
            f"{said} is {type(handler).__name__} {handler!r}; allowed are "
            "'path.so:symbol', (path, symbol), an address, a ctypes function and a PyCapsule"
        )
    if not 0 < address < 1 << 64:
        raise InvalidArgumentError(f"{said} is {address:#x}, which is no address")
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
        return addresses_of(handler, "register: handler", STAGES)
    address = address_of(handler)
    if address in _own_typed_handlers():
        return {"instantiate": address, "execute": address}
    return {"execute": address}


def addresses_of(given: Mapping[Any, Any], said: str, allowed: Sequence[str]) -> dict[str, int]:
    """The addresses of a dict by stage, or by another of the names that are allowed."""
    if any(name not in allowed for name in given) or "execute" not in given:
        raise InvalidArgumentError(
            f"{said} has {_named(given)}; allowed are {_named(allowed)}, and execute must be there"
        )
    return {name: address_of(one, f"{said}[{name!r}]") for name, one in given.items()}


def _named(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
