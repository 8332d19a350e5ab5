"""What the public functions share, and those that the schema alone makes.

Python values become arrays and attributes here, as the op's schema says; shapes, dtypes and ranges
are checked by the library when the call is traced.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from xla_gpu import _docs, _given, _ops, _schema
from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu.jax import _primitive

_F = TypeVar("_F", bound=Callable[..., Any])
known_types: set[type] = {type(None)}  # and those seen by `array`: eager calls repeat them


def invoke(op: str, args: Sequence[Any], attrs: Sequence[Any]) -> Any:
    """Calls an op with Python values in the schema's order, which takes least of an eager call.

    Args:
      op: its name.
      args: what became of the arguments; None for an absent optional one.
      attrs: what became of the attributes; None for a default, where the schema says so.

    Returns:
      The result, or a tuple of them where the call has several.
    """
    primitive = _primitive.of(op)
    args = arrays(op, primitive, args)
    results = _jitted(op, primitive.environment(), *attrs)(*args)
    return results[0] if len(results) == 1 else tuple(results)


# ---- Values --------------------------------------------------------------------------------------


def arrays(op: str, primitive: _primitive.OpPrimitive, values: Sequence[Any]) -> Sequence[Any]:
    """Python values in the schema's order as arrays; None for absent optional arguments."""
    if known_types.issuperset(map(type, values)):
        return values
    return list(map(functools.partial(_array, op), primitive.schema.args, values))


def array(op: str, name: str, value: Any, optional: bool = False) -> Any:
    """The value if it is an array, or one of the Python numbers that it holds; else an error."""
    if value is None and optional:
        return None
    if isinstance(value, jax.Array):
        known_types.add(type(value))
        return value
    if hasattr(value, "__jax_array__"):  # of which newer releases let jit take none
        return jnp.asarray(value)
    if isinstance(value, np.ndarray | np.generic):
        if (
            value.dtype.name in _ops.NUMPY_DTYPE_NAMES
            and value.dtype.isnative
            and not isinstance(value, np.ma.MaskedArray)
        ):
            return value
        raise InvalidArgumentError(
            f"{op}: {name} is {type(value).__name__} of dtype {value.dtype.str}; it must be an "
            "array without a mask, of numbers that XLA has, in this machine's byte order"
        )
    if isinstance(value, list | tuple | numbers.Number):
        try:
            made = np.asarray(value)
            if made.dtype != np.bool_ and _all_ints(value):
                made = np.asarray(value, np.int32)
        except ValueError:
            pass
        except OverflowError:
            raise InvalidArgumentError(
                f"{op}: {name} is {_given.came(value)}; ints must fit i32, or come as an array"
            ) from None
        else:
            return array(op, name, made)
    raise InvalidArgumentError(
        f"{op}: {name} is {type(value).__name__} {value!r}; it must be an array"
    )


def _all_ints(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_all_ints, value))
    return isinstance(value, numbers.Integral)


def _array(op: str, arg: _schema.Arg, value: Any) -> Any:
    """As `array`; a number for a vector becomes [1], None is an absent argument."""
    kind = numbers.Real if arg.dtypes == ("f32",) else numbers.Integral
    if arg.vector and isinstance(value, kind) and not isinstance(value, bool):
        if kind is numbers.Real:
            value = _schema.number(f"{op}: {arg.name}", "float", value)
        return np.full((1,), array(op, arg.name, value), _ops.NUMPY_NAMES[arg.dtypes[0]])
    return array(op, arg.name, value, arg.optional)


def keep(function: _F) -> _F:
    """Keeps what a function of Python values gave: eager calls repeat them."""
    kept = functools.lru_cache(maxsize=1024, typed=True)(function)  # typed: True is no window of 1

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        try:
            return kept(*args, **values)
        except TypeError:  # an array, which has no hash: let the check say so
            return function(*args, **values)

    return cast(_F, call)


def attributes(op: str, said: str, /, **values: Any) -> _primitive.Attrs:
    """The attributes of an op as the library takes them; errors begin with `said`.

    None is left out where it stands for the default, which is known when the call is made.
    """
    attrs = {attr.name: attr for attr in _schema.schema(op).attrs}
    return tuple(
        (name, attribute(said, attrs[name], value))
        for name, value in values.items()
        if value is not None or not attrs[name].none_is_default
    )


def attribute(op: str, attr: _schema.Attr, value: Any) -> _ops.AttrValue | None:
    """An attribute of a Python value; ValueError where it cannot be one."""
    if attr.type == "dtype" and (name := _dtype_name(value)) is not None:
        return name  # the library says which are allowed
    return _schema.attribute(op, attr, value, _dtype_name)


def _dtype_name(value: Any) -> str | None:
    try:
        return _ops.NUMPY_DTYPE_NAMES.get(jnp.dtype(value).name)
    except TypeError:
        return None


@keep
def _jitted(op: str, environment: tuple[bytes | None, ...], *values: Any) -> Any:
    primitive = _primitive.of(op)
    named = zip((attr.name for attr in primitive.schema.attrs), values, strict=True)
    return primitive.jitted(attributes(op, op, **dict(named)), environment)


# ---- Functions of the schema ---------------------------------------------------------------------


@functools.cache
def function(op: str) -> Callable[..., Any]:
    """An op as a function: its required arguments and its attributes, then what must be named."""
    schema = _schema.schema(op)
    signature = inspect.Signature(_schema.parameters(schema))
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    args, attrs = ([each.name for each in of] for of in (schema.args, schema.attrs))
    accepted: set[tuple[Any, ...]] = set()  # a number of positional values, and names

    whole = len(positional) if len(positional) == len(parameters) else -1

    @at_callers_line
    def call(*given: Any, **named: Any) -> Any:
        if len(given) == whole and not named:
            return invoke(op, given[: len(args)], given[len(args) :])
        form = len(given), *named
        if form not in accepted:
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise TypeError(f"{op}: {error}") from None
            accepted.add(form)
        values = {**defaults, **dict(zip(positional, given)), **named}
        return invoke(op, [values[name] for name in args], [values[name] for name in attrs])

    call.__name__ = call.__qualname__ = op
    call.__module__ = "xla_gpu.jax"
    results = [r for r in schema.results if r.kind != "scratch"]
    call.__doc__ = _docs.of_schema(schema.doc, schema.args, schema.attrs, results)
    vars(call)["__signature__"] = signature
    return call
