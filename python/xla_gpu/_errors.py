"""The exceptions of the package: one class, plus the built-in ones Python users expect."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


class StatusCode(enum.IntEnum):
    """What kind of error it is: the canonical (absl, gRPC) numbers."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15

    @classmethod
    def _missing_(cls, value: object) -> StatusCode:
        return cls.UNKNOWN


class XlaGpuError(Exception):
    """An error of the library.

    Attributes:
      code: its StatusCode; a class's own unless another is given.
    """

    code = StatusCode.INTERNAL

    def __init__(self, message: str, code: StatusCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def code_name(self) -> str:
        """The code's name, e.g. "INVALID_ARGUMENT"."""
        return self.code.name


class InvalidArgumentError(XlaGpuError, ValueError):
    """INVALID_ARGUMENT and OUT_OF_RANGE: the call is wrong (also a ValueError)."""

    code = StatusCode.INVALID_ARGUMENT


class NotFoundError(XlaGpuError, LookupError):
    """NOT_FOUND: no op, symbol, file or plugin of that name (also a LookupError)."""

    code = StatusCode.NOT_FOUND


class UnimplementedError(XlaGpuError, NotImplementedError):
    """UNIMPLEMENTED: correct, but not offered on this platform (also a NotImplementedError)."""

    code = StatusCode.UNIMPLEMENTED


_CLASSES: dict[StatusCode, type[XlaGpuError]] = {
    each.code: each for each in (InvalidArgumentError, NotFoundError, UnimplementedError)
}
_CLASSES[StatusCode.OUT_OF_RANGE] = InvalidArgumentError


def at_callers_line(function: _F) -> _F:
    """`function`, whose errors of this library end at the caller's line, not in layers below."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except XlaGpuError as error:
            raise error.with_traceback(None) from None

    return cast(_F, call)


def make_error(code: int, message: str) -> XlaGpuError:
    """The exception for a Status of the library."""
    known = StatusCode(code)
    return _CLASSES.get(known, XlaGpuError)(message, known)
