"""The exceptions of the package: one class, plus the built-in ones Python users expect."""

from __future__ import annotations

_CODE_NAMES = {
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
}


class XlaGpuError(Exception):
    """An error of the library.

    Attributes:
      code: the canonical (absl, gRPC) number, e.g. 3.
      code_name: its name, e.g. "INVALID_ARGUMENT".
    """

    def __init__(self, message: str, code: int = 13) -> None:
        super().__init__(message)
        self.code = code
        self.code_name = _CODE_NAMES.get(code, f"code {code}")


class InvalidArgumentError(XlaGpuError, ValueError):
    """INVALID_ARGUMENT and OUT_OF_RANGE: the call is wrong (also a ValueError)."""


class NotFoundError(XlaGpuError, LookupError):
    """NOT_FOUND: no op, symbol, file or plugin of that name (also a LookupError)."""


class UnimplementedError(XlaGpuError, NotImplementedError):
    """UNIMPLEMENTED: correct, but not offered on this platform (also a NotImplementedError)."""


_CLASSES: dict[int, type[XlaGpuError]] = {
    3: InvalidArgumentError,
    5: NotFoundError,
    11: InvalidArgumentError,
    12: UnimplementedError,
}


def make_error(code: int, message: str) -> XlaGpuError:
    """The exception for a Status of the library."""
    return _CLASSES.get(code, XlaGpuError)(message, code)
