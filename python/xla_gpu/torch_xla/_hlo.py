"""One custom call as a serialized HloModuleProto, which PyTorch/XLA takes as a computation.

`torch_xla._XLAC._xla_custom_call` can neither say that a result shares an argument's buffer nor
keep calls apart that differ in their configuration only: its executable cache hashes the target's
name and the types, nothing else. A computation is hashed by its bytes, so calls made from this
module never share an executable unless they are equal. Field numbers are those of XLA's hlo.proto
and xla_data.proto, which never change the meaning of one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence

from xla_gpu import _ops
from xla_gpu._errors import InvalidArgumentError

# ---- Protobuf's wire format --------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _ints(field: int, values: Sequence[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values))) if values else b""


# ---- Shapes (ShapeProto) -----------------------------------------------------------------------

_TUPLE = 13  # PrimitiveType


def _array_shape(spec: _ops.TensorSpec) -> bytes:
    rank = len(spec.shape)
    layout = _ints(1, list(reversed(range(rank))))  # minor_to_major: row-major
    return (
        _int(2, _ops.DTYPES[spec.dtype])
        + _ints(3, spec.shape)
        + _bytes(5, layout)
        + _ints(6, [0] * rank)  # is_dynamic_dimension
    )


def _result_shape(results: Sequence[_ops.TensorSpec]) -> bytes:
    if len(results) == 1:
        return _array_shape(results[0])
    return _int(2, _TUPLE) + b"".join(_bytes(4, _array_shape(spec)) for spec in results)


# ---- The module --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """All that XLA knows of a custom call.

    The computation's parameters are the call's arguments from last to first.
    PyTorch/XLA numbers a program's parameters by a walk that takes a node's last operand first, and
    XLA pairs donated parameters with results of the same size by their order. So caches that are
    passed and returned in one order keep their memory; in another, XLA would copy them.

    Attributes:
      target: the name under which its handler is registered.
      args: the types of its arguments.
      results: the types of its results, at least one.
      api_version: 1, 2, 3 (untyped handlers) or 4 (typed).
      backend_config: the opaque text (1, 2, 3) or the attributes as an MLIR dictionary (4).
      has_side_effect: XLA keeps the call though nothing uses its results, and never merges two.
      aliases: result index -> index of the argument whose buffer it shares.
      frontend_attributes: name -> text.
    """

    target: str
    args: tuple[_ops.TensorSpec, ...]
    results: tuple[_ops.TensorSpec, ...]
    api_version: int
    backend_config: str = ""
    has_side_effect: bool = False
    aliases: tuple[tuple[int, int], ...] = ()
    frontend_attributes: tuple[tuple[str, str], ...] = ()

    def module_proto(self) -> bytes:
        """The module whose entry computation is this call on its parameters."""
        program_shape = b"".join(
            [
                *(_bytes(1, _array_shape(spec)) for spec in reversed(self.args)),
                _bytes(2, _result_shape(self.results)),
                *(_bytes(3, f"p{i}") for i in range(len(self.args))),
            ]
        )
        name = "xla_gpu_custom_call"  # of whose parts XLA wants names that end in ".<id>"
        # Instructions are numbered from 1; the computation's number must differ from theirs.
        root = len(self.args) + 1
        entry = root + 1
        computation = b"".join(
            [
                _bytes(1, f"{name}.{entry}"),
                *(_bytes(2, instruction) for instruction in self._instructions(root)),
                _bytes(4, program_shape),
                _int(5, entry),
                _int(6, root),
            ]
        )
        return b"".join(
            [
                _bytes(1, name),
                _bytes(2, f"{name}.{entry}"),
                _bytes(3, computation),
                _bytes(4, program_shape),
                _int(5, 1),
                _int(6, entry),
            ]
        )

    def _instructions(self, root: int) -> Iterator[bytes]:
        for i, spec in enumerate(self.args):
            yield b"".join(
                [
                    _bytes(1, f"p{i}.{i + 1}"),
                    _bytes(2, "parameter"),
                    _bytes(3, _array_shape(spec)),
                    _int(9, len(self.args) - 1 - i),  # parameter_number
                    _int(35, i + 1),  # id
                ]
            )
        yield b"".join(
            [
                _bytes(1, f"custom-call.{root}"),
                _bytes(2, "custom-call"),
                _bytes(3, _result_shape(self.results)),
                _bytes(28, self.target),
                _int(35, root),
                _ints(36, list(range(1, root))),  # operand_ids
                _bytes(43, self.backend_config),
                _int(65, int(self.has_side_effect)),
                self._frontend_attributes(),
                *(_bytes(74, self._alias(result, arg)) for result, arg in self.aliases),
                _int(77, self.api_version),
            ]
        )

    def _alias(self, result: int, arg: int) -> bytes:
        """OutputOperandAliasing."""
        index = _ints(1, [result]) if len(self.results) > 1 else b""
        return index + _int(2, arg)

    def _frontend_attributes(self) -> bytes:
        entries = (_bytes(1, _bytes(1, k) + _bytes(2, v)) for k, v in self.frontend_attributes)
        attributes = b"".join(entries)
        return _bytes(68, attributes) if attributes else b""


# ---- Attributes as text ------------------------------------------------------------------------


def attributes_text(attrs: Mapping[str, _ops.AttrValue], floats: str = "f32") -> str:
    """The attributes of a typed call as XLA reads them: `{scale = 2.0 : f32}`.

    Floats become f32, or f64 if `floats` says so, ints i64, sequences of ints arrays of i64.

    Raises:
      InvalidArgumentError (a ValueError): for a value of another type.
    """
    if not isinstance(attrs, Mapping):
        raise InvalidArgumentError(f"attributes is {type(attrs).__name__}; it must be a dict")
    for name in attrs:
        if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w$.]*", name, re.ASCII)):
            raise InvalidArgumentError(
                f"attribute {name!r}: a name must be a str of letters, digits, '_', '$' and '.' "
                "that begins with a letter or '_'"
            )
    return "{" + ", ".join(f"{name} = {_value(name, v, floats)}" for name, v in attrs.items()) + "}"


def _value(name: str, value: _ops.AttrValue, floats: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise InvalidArgumentError(
                f"attribute '{name}' has an int of {number.bit_length()} bits; allowed are those "
                "of i64"
            )
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{_float(value, floats)} : {floats}"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Sequence) and all(isinstance(v, int) for v in value):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    raise InvalidArgumentError(
        f"attribute '{name}' is {type(value).__name__} {value!r}; allowed are bool, int, float, "
        "str and a sequence of ints"
    )


def _float(value: float, floats: str) -> str:
    """An MLIR literal of exactly the f32 or f64 next to `value`."""
    kind, digits = ("<f", 10) if floats == "f32" else ("<d", 18)
    try:
        bits = struct.pack(kind, value)
    except OverflowError:
        bits = struct.pack(kind, math.copysign(math.inf, value))
    (rounded,) = struct.unpack(kind, bits)
    if not math.isfinite(rounded):
        return f"{int.from_bytes(bits, 'little'):#0{digits}x}"
    mantissa, e, exponent = repr(rounded).partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + e + exponent


def _string(text: str) -> str:
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode())
    return f'"{"".join(plain)}"'
