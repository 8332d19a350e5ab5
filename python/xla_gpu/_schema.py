"""The ops' schemas, as the library tells them, and what follows from them in every framework."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import inspect
import json
import keyword
import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xla_gpu import _lib
from xla_gpu._errors import InvalidArgumentError, NotFoundError
from xla_gpu._ops import AttrValue

if TYPE_CHECKING:
    from xla_gpu._kernel import Kernel


@dataclasses.dataclass(frozen=True)
class Arg:
    """An argument of an op (ArgSpec of src/core/op.h, which says what each member means)."""

    name: str
    dtypes: tuple[str, ...]
    optional: bool
    vector: bool
    no_copy: bool
    doc: str


@dataclasses.dataclass(frozen=True)
class Result:
    """A result that calls of an op may have (ResultSpec)."""

    name: str
    kind: str
    alias_of: str
    only_with: str
    form: str
    like: str
    rank: int
    dtype: str
    doc: str


@dataclasses.dataclass(frozen=True)
class Attr:
    """An attribute of an op (AttrSpec)."""

    name: str
    type: str
    default: AttrValue | None
    none_is_default: bool
    keyword_only: bool
    derived: bool
    dtypes: tuple[str, ...]
    environment: str
    doc: str


@dataclasses.dataclass(frozen=True)
class Op:
    """An op (Op of src/core/op.h).

    `definition` and `kernel`, the user's, are there where the op is defined at run time.
    """

    name: str
    key: str
    target: str
    doc: str
    platforms: tuple[str, ...]
    args: tuple[Arg, ...]
    results: tuple[Result, ...]
    attrs: tuple[Attr, ...]
    instead_of_gradient: str
    instead_of_batching: str
    kernel: Kernel | None = None
    definition: str = ""

    @property
    def id(self) -> str:
        """What the library finds it by."""
        return self.key or self.name


def _made(kind: type, members: dict[str, Any]) -> Any:
    """The dataclass of a JSON object, its lists as tuples."""
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in members.items()}
    return kind(**values)


def ops() -> list[dict[str, Any]]:
    """Every op with its schema and platforms (see `xla-gpu ops`)."""
    found: list[dict[str, Any]] = json.loads(_lib.take_string(_lib.load().xla_gpu_ops_json()))
    return found


@functools.cache
def schemas() -> dict[str, Op]:
    """The schema of every op of the library, by name."""
    return {members["name"]: _op(members) for members in ops()}


def _op(members: dict[str, Any]) -> Op:
    for name, kind in (("args", Arg), ("results", Result), ("attrs", Attr)):
        members[name] = [_made(kind, each) for each in members[name]]
    made: Op = _made(Op, members)
    return made


_defined: dict[str, Op] = {}  # by key, the first of each


def define(definition: dict[str, Any] | str, kernel: Kernel | None) -> Op:
    """Makes a kernel of the user's an op of the library, by the content of its definition.

    Kernels of equal definitions are one op there, and here one for each kernel, which has the rules
    that are Python functions. Without `kernel`, as in a program that another process exported, the
    op has its definition only.

    Raises:
      InvalidArgumentError: with the library's message, which names the member that is wrong.
    """
    text = definition if isinstance(definition, str) else json.dumps(definition, sort_keys=True)
    return _define(text, kernel)


@functools.cache
def _define(text: str, kernel: Kernel | None) -> Op:
    encoded = text.encode()
    told = _lib.text_of(_lib.load().xla_gpu_define_kernel, encoded, len(encoded))
    op = dataclasses.replace(_op(json.loads(told)), kernel=kernel, definition=text)
    _defined.setdefault(op.key, op)
    return op


def defined() -> list[Op]:
    """The ops that kernels of this process are."""
    return list(_defined.values())


def portable(op: Op) -> str:
    """The definition for a program that leaves this process.

    Raises:
      InvalidArgumentError: for code that is a function in this process, or in a library.
    """
    for platform, implementation in json.loads(op.definition)["implementations"].items():
        for member in ("address", "library"):
            if member in implementation:
                raise InvalidArgumentError(
                    f"{op.name}: its {platform} code is a function "
                    f"{'of this process' if member == 'address' else 'of a library'}, which an "
                    "exported program cannot hold; export sources or machine code"
                )
    return op.definition


def schema(op: str) -> Op:
    """The schema of one op, by name or key; NotFoundError if the library has none of that name."""
    found = schemas().get(op) or _defined.get(op)
    if found is None:
        raise NotFoundError(f"this library has no op '{op}'; it has {list(schemas())}")
    return found


def parameters(schema: Op) -> list[inspect.Parameter]:
    """Of the Python function of an op: arguments by position, and what must be named."""
    empty, named = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    kinds = {False: inspect.Parameter.POSITIONAL_OR_KEYWORD, True: named}
    parameters = [
        inspect.Parameter(
            python_name(a.name), kinds[a.optional], default=None if a.optional else empty
        )
        for a in schema.args
    ]
    for attr in schema.attrs:
        if attr.derived:
            continue
        default = None if attr.none_is_default else empty if attr.default is None else attr.default
        name = python_name(attr.name)
        parameters.append(inspect.Parameter(name, kinds[attr.keyword_only], default=default))
    return sorted(parameters, key=lambda p: p.kind)


def python_name(name: str) -> str:
    """A parameter's name: that of an argument, or "in_" where this is a word of Python's."""
    return f"{name}_" if keyword.iskeyword(name) else name


# ---- Attributes --------------------------------------------------------------------------------

# What a caller may write, its name in messages, and what the library takes.
_NUMBERS: dict[str, tuple[type, str, Callable[[Any], float]]] = {
    "float": (numbers.Real, "number", float),
    "int": (numbers.Integral, "int", int),
}
_LARGEST = sys.float_info.max
_RANGES = {
    "float": f"{-_LARGEST:g} to {_LARGEST:g}, inf and nan",
    "int": f"{-(1 << 63)} to {(1 << 63) - 1}",
}


def number(said: str, kind: str, value: Any) -> float:
    """A number as an attribute of this kind ("float", "int") holds it; `said`: its name."""
    try:
        made = _NUMBERS[kind][2](value)
        if kind == "float" or -(1 << 63) <= made < 1 << 63:
            return made
    except OverflowError:
        pass
    raise InvalidArgumentError(f"{said} is {_came(value)}; allowed are {_RANGES[kind]}")


def attribute(
    op: str, attr: Attr, value: Any, dtype_name: Callable[[Any], str | None]
) -> AttrValue | None:
    """An attribute as the library takes it, of what a caller wrote; its range is checked there.

    Args:
      op: the name that errors begin with.
      attr: the attribute.
      value: a Python value; None stands for the default where the schema says so.
      dtype_name: the library's name of a framework's dtype; None for what is none.

    Returns:
      The value; None for an attribute that the call leaves out.

    Raises:
      InvalidArgumentError (a ValueError): for a value of another type.
    """
    if value is None and attr.none_is_default:
        return default(attr)
    or_none = " or None" if attr.none_is_default else ""
    if attr.type == "bool":
        if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # NumPy's too
            return bool(value)
        raise InvalidArgumentError(
            f"{op}: {attr.name} is {_came(value)}; allowed are True and False"
        )
    if attr.type == "dtype":
        name = dtype_name(value)
        if name is not None and name in attr.dtypes:
            return name
        allowed = ", ".join(attr.dtypes)
        raise InvalidArgumentError(
            f"{op}: {attr.name} is {value!r}; allowed are {allowed}{or_none}"
        )
    if attr.type in _NUMBERS:
        kind, word, _ = _NUMBERS[attr.type]
        if isinstance(value, kind) and not isinstance(value, bool):
            return number(f"{op}: {attr.name}", attr.type, value)
        raise InvalidArgumentError(
            f"{op}: {attr.name} is {_came(value)}; allowed is a Python {word}{or_none}"
        )
    text_or_ints: AttrValue = value
    return text_or_ints


# The value of an environment variable: os.environ takes a microsecond where there is none.
getenv = ctypes.PyDLL(None).getenv
getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p


def default(attr: Attr) -> AttrValue | None:
    """What an attribute is that a caller leaves out, at the time when a call is traced."""
    if attr.environment:
        return bool(getenv(attr.environment.encode()) == b"1")
    return attr.default


def _came(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return "an array: it is fixed when the call is compiled (mark it static in jax.jit)"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    return f"{type(value).__name__} {value!r}"[:100]
