"""What the functions that make kernels take: one table of their parameters, checked first.

What depends on a source or on a call's arguments is checked where it is known: by the library
(definition.cc), and when a call is traced.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from xla_gpu._errors import InvalidArgumentError

_F = TypeVar("_F", bound=Callable[..., Any])
_Fits = Callable[[Any], bool]


def is_int(value: Any) -> bool:
    """Whether it is one of Python's or NumPy's ints; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def came(value: Any) -> str:
    """A value for a message: short, however large or deep it is."""
    return _repr.repr(value)


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def _is(*types: type) -> _Fits:
    return lambda value: isinstance(value, types)


def _is_text(value: Any) -> bool:
    """Whether compilers and the library can be given it: no NUL, nor what UTF-8 does not hold."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


SOURCE = "text in UTF-8 without NUL, or the path of a file"


def is_path(value: Any) -> bool:
    """Whether it is text, or a path whose name is."""
    return isinstance(value, str | os.PathLike) and _is_text(os.fspath(value))


def _is_name(value: Any) -> bool:
    return _is_text(value) and value != ""


def _is_size(value: Any) -> bool:
    return is_int(value) and value >= 0


def _is_plain(value: Any) -> bool:
    """Whether it can be a member of an argument's or a parameter's description."""
    items = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, str | int | float | None) for one in items)


def _is_described(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _is_plain(member) for name, member in value.items()
    )


def _each(fits: _Fits) -> _Fits:
    return lambda value: isinstance(value, list | tuple) and all(map(fits, value))


def anything(value: Any) -> bool:
    return True


def by_name(value: Any, fits: _Fits = anything) -> bool:
    """Whether it is a dict of names, its values such that `fits` holds."""
    return (
        isinstance(value, Mapping) and all(map(_is_name, value)) and all(map(fits, value.values()))
    )


def _are_dims(value: Any) -> bool:
    dims = value if isinstance(value, list | tuple) else [value]
    return 1 <= len(dims) <= 3 and all(map(is_int, dims))


def _are_different_names(value: Any) -> bool:
    return _each(_is_name)(value) and len(set(value)) == len(value)


_source = (is_path, SOURCE)
_dims = (lambda v: _are_dims(v) or is_function(v), "1 to 3 ints, or a function of arguments")
_size = (lambda v: _is_size(v) or is_function(v), "a number of bytes, or a function of arguments")
_text = (_is_text, "a str without NUL")
_flag = (_is(bool), "True or False")
_texts = (_each(_is_text), "a list of str without NUL")

# By a parameter's name: what fits, and how a message says it. A parameter's default always fits.
_KINDS: dict[str, tuple[_Fits, str]] = {
    "source": _source,
    "image": (lambda v: isinstance(v, bytes) or is_path(v), "bytes, or the path of a file"),
    "entry": (_is_name, "the name of a function"),
    "grid": _dims,
    "block": _dims,
    "shared_memory": _size,
    "workspace": _size,
    "outputs": (by_name, "a dict by the names of results"),
    "in_place": (_are_different_names, "a list of different names"),
    "scalars": (by_name, "a dict by the names of scalars"),
    "arguments": (
        _each(lambda v: _is_name(v) or _is_described(v)),
        'a list of names, or of dicts with "name", "dtypes", "optional"',
    ),
    "parameters": (
        _each(lambda v: v is None or isinstance(v, str) or _is_described(v)),
        'a list of names, None, and dicts such as {"value": 3, "type": "i32"}',
    ),
    "options": _texts,
    "include_dirs": (_each(is_path), "a list of folders"),
    "defines": (
        lambda v: by_name(v, lambda one: _is_text(one) or _is(int, float, type(None))(one)),
        "a dict of macros: names, and text, numbers or None",
    ),
    "cluster": (
        lambda v: _each(is_int)(v) and len(v) == 3,
        "three ints of 1 to 16",
    ),
    "name": (_is_name, "the custom call's target, a line of text, or None"),
    "capture": _flag,
    "owned": _flag,
    "returns_error": _flag,
    "api_version": (is_int, "1, 2, 3 or None"),
    "opaque": _text,
    "convention": _text,
    "platform": (lambda v: isinstance(v, str) or _each(_is(str))(v), "'CUDA', 'Host' or both"),
    "gradient": (is_function, "a function or None"),
    "sharding": (_is_name, 'a rule such as "i j, j -> i", or None'),
    "doc": (_is_text, "a str without NUL, or None"),
}


# Of templates: an entry may be an instance, which a function of a call's arguments may say.
ENTRY = (
    lambda v: _is_name(v) or is_function(v),
    "a name, an expression, or a function of arguments",
)


def checked(**instead: tuple[_Fits, str]) -> Callable[[_F], _F]:
    """A function that makes kernels, its parameters checked by the table, or by `instead`."""
    kinds = {**_KINDS, **instead}

    def wrap(function: _F) -> _F:
        signature = inspect.signature(function)
        said = function.__name__

        @functools.wraps(function)
        def make(*args: Any, **named: Any) -> Any:
            try:
                given = signature.bind(*args, **named).arguments
            except TypeError:
                return function(*args, **named)  # whose own error is the better one
            names = (given.get("name"), given.get("entry"))
            kernel = next((n for n in names if _is_name(n)), said)
            for name, value in given.items():
                if value is signature.parameters[name].default or name not in kinds:
                    continue
                fits, allowed = kinds[name]
                if not fits(value):
                    raise InvalidArgumentError(
                        f"{kernel}: {name} is {came(value)}; it must be {allowed}"
                    )
            return function(*args, **named)

        return cast(_F, make)

    return wrap
