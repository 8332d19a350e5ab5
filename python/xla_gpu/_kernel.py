"""Kernels of the user's: one description, which every framework of the process can call.

A kernel is known to the library by a *definition* (src/ops/user_kernel/definition.h), a JSON text
from which the library makes an op with a schema like that of its own ops. What depends on shapes
(the grid, the types of results, which variant of a template) is worked out for each call while it
is traced: `Kernel.resolve`.
"""

from __future__ import annotations

import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _given, _ops, _schema
from xla_gpu._errors import InvalidArgumentError
from xla_gpu._ops import AttrValue, TensorSpec

Specs = Mapping[str, TensorSpec]
Scalars = Mapping[str, AttrValue]

VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")


class Kernel:
    """A kernel that can be called on the arrays of any framework here.

    Made by `xla_gpu.cuda_kernel` and its siblings. `kernel(x, y, alpha=2.0)` takes JAX arrays and
    tracers, torch tensors on CPU and CUDA, torch_xla's and torchax's tensors; all arguments are of
    one framework. Under jit it is one custom call whose target is the kernel's name.

    Attributes:
      name: the custom call's target.
      schema: what a call takes: arguments, scalars (as attributes), results.
      aliases: for each result the position of the argument that it is in place, else None.
      number: its position in `kernels`.
      reads_arguments: whether functions of a call's arguments say something of it.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any],
        launch: Mapping[str, Any] | None = None,
        derived: Mapping[str, Callable[..., Any]] | None = None,
        workspace: Any = 0,
        variant: Callable[[Specs, Scalars], Mapping[str, Any]] | None = None,
        vmap: str | None = None,
        gradient: Callable[..., Any] | None = None,
        sharding: str | None = None,
    ) -> None:
        """For the functions that make kernels.

        Args:
          definition: the JSON text's content, without what `variant` adds.
          outputs: by result, what says its type where the definition does not (see `output_spec`).
          launch: "grid", "block" and "shared_memory", each a value or a function of arguments.
          derived: scalars that follow from the arguments, as functions.
          workspace: bytes of scratch memory, or a function of the arguments.
          variant: members that replace the definition's for arguments of these types.
          vmap: one of VMAP_METHODS, or None for an error that says so.
          gradient: (arguments, results, gradients of the results, **scalars) -> gradients of the
            arguments, by functions of the framework whose arrays come.
          sharding: a rule in Shardy's form, "i j, j -> i".
        """
        self.name = str(definition["name"])
        if vmap is not None and not (isinstance(vmap, str) and vmap in VMAP_METHODS):
            raise InvalidArgumentError(
                f"{self.name}: vmap is {_given.came(vmap)}; allowed are "
                f"{', '.join(VMAP_METHODS)} and None"
            )
        self._definition = dict(definition)
        self._outputs = dict(outputs)
        self._launch = dict(launch or {})
        self._derived = dict(derived or {})
        self._workspace = workspace
        self._variant = variant
        said = (*self._outputs.values(), *self._launch.values(), workspace)
        self.reads_arguments = bool(variant or derived) or any(map(_given.is_function, said))
        self.vmap, self.gradient, self.sharding = vmap, gradient, sharding
        self.schema = self._define({})
        if sharding is not None:
            factors_of(self.name, sharding, self.schema)
        self._scalars = tuple(a for a in self.schema.attrs if not a.derived)
        self.__signature__ = inspect.Signature(_schema.parameters(self.schema))
        names = [a.name for a in self.schema.args]
        self.__doc__ = self.schema.doc or type(self).__doc__
        self._bound = _binder(self)
        results = (r.alias_of for r in self.schema.results if r.kind != "scratch")
        self.aliases = tuple(names.index(a) if a else None for a in results)
        self.number = len(kernels)
        kernels.append(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the kernel; a result, or a tuple of them.

        Raises:
          TypeError: for a wrong count or keyword.
          InvalidArgumentError (a ValueError): for a wrong dtype, rank or scalar, by its name.
        """
        arrays, scalars = self._bound(*args, **named)
        for array in arrays:
            if array is not None:
                front_end = _front_ends.get(type(array))
                break
        else:
            raise InvalidArgumentError(
                f"{self.name}: no argument came; at least one must be an array"
            )
        if front_end is None:
            front_end = _front_end(self, array)
        return front_end(self, arrays, scalars)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: object) -> Kernel:
        return self

    def __reduce__(self) -> str:
        raise TypeError(
            f"{self.name}: a kernel cannot be pickled; make it in each process, or export a program"
        )

    def __repr__(self) -> str:
        return f"<xla_gpu kernel {self.name}{self.__signature__}>"

    def scalars(self, values: Sequence[Any]) -> dict[str, AttrValue]:
        """A call's scalars, in the schema's order, as the library takes them.

        Raises:
          InvalidArgumentError: for one of another type, by its name.
        """
        given = {
            attr.name: value
            if attr.type == "int" and _is_symbolic(value)
            else _schema.attribute(self.name, attr, value, lambda value: None)
            for attr, value in zip(self._scalars, values, strict=True)
        }
        return {name: value for name, value in given.items() if value is not None}

    def resolve(self, specs: Specs, scalars: Scalars) -> tuple[_schema.Op, dict[str, AttrValue]]:
        """The op and all attributes of a call, by the types of the arguments that it brings."""
        schema = self.schema
        if self._variant is not None:
            schema = self._define(self._variant(*exact(specs, scalars)))
        call = _Call(self.name, specs, scalars)
        attrs: dict[str, AttrValue] = dict(scalars)
        for name, function in self._derived.items():
            attr = next(a for a in schema.attrs if a.name == name)
            value = call.value(function, name)
            made = value
            if not _is_symbolic(value):
                made = _schema.attribute(self.name, attr, value, lambda value: None)
            if made is not None:
                attrs[name] = made
        types: list[int] = []
        for name, output in self._outputs.items():
            spec = output_spec(self.name, name, call.value(output, f"outputs[{name!r}]"), specs)
            types += [_ops.DTYPES[spec.dtype], len(spec.shape), *spec.shape]
        if types:
            attrs["result_types"] = tuple(types)
        for name in ("grid", "block"):
            if name in self._launch:
                attrs[name] = _dims(self.name, name, call.value(self._launch[name], name))
        for name, given in (
            ("shared_memory", self._launch.get("shared_memory", 0)),
            ("workspace_bytes", self._workspace),
        ):
            if count := _bytes(self.name, name, call.value(given, name)):
                attrs[name] = count
        attrs["kernel"] = schema.key
        return schema, attrs

    def user_scalars(self, attrs: Mapping[str, AttrValue]) -> dict[str, AttrValue]:
        """Of a call's attributes, those that the user gave."""
        return {a.name: attrs[a.name] for a in self._scalars if a.name in attrs}

    def _define(self, members: Mapping[str, Any]) -> _schema.Op:
        return _schema.define({**self._definition, **members}, self)


_NAMELESS = inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)


class _Call:
    """What functions of a call's arguments are given: those that their parameters name."""

    def __init__(self, kernel: str, specs: Specs, scalars: Scalars) -> None:
        self._kernel = kernel
        known = {**specs, **scalars}
        self._known = {_schema.python_name(name): value for name, value in known.items()}

    def value(self, given: Any, what: str) -> Any:
        if not _given.is_function(given):
            return given
        try:
            wanted = list(inspect.signature(given).parameters.values())
        except ValueError:  # a builtin, which tells no names
            wanted = [_NAMELESS]
        if any(p.kind is p.VAR_KEYWORD for p in wanted):
            return self._called(given, what, self._known)
        if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in wanted):
            raise InvalidArgumentError(
                f"{self._kernel}: the function {what} has parameters without names; it is given "
                f"arguments and scalars by theirs: {', '.join(self._known)}"
            )
        names = [p.name for p in wanted if p.default is p.empty or p.name in self._known]
        unknown = [name for name in names if name not in self._known]
        if unknown:
            raise InvalidArgumentError(
                f"{self._kernel}: the function {what} has a parameter {unknown[0]}, which is no "
                f"argument or scalar of this call; it has {', '.join(self._known)}"
            )
        return self._called(given, what, {name: self._known[name] for name in names})

    def _called(self, function: Callable[..., Any], what: str, named: dict[str, Any]) -> Any:
        try:
            return function(**named)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"{self._kernel}: raised by the function {what}")
            raise


def exact(specs: Specs, scalars: Scalars) -> tuple[Specs, Scalars]:
    """As ints what torch traces for any size: code is made for these, and torch traces anew."""
    ints = {n: TensorSpec(s.dtype, tuple(map(int, s.shape))) for n, s in specs.items()}
    numbers: dict[str, Any] = dict(scalars)
    return ints, {n: int(v) if _is_symbolic(v) else v for n, v in numbers.items()}


def call_with(kernel: str, specs: Specs, scalars: Scalars, given: Any, what: str) -> Any:
    """`given`, or what it gives for a call's arguments if it is a function of them."""
    return _Call(kernel, specs, scalars).value(given, what)


def dtype_name(value: Any) -> str | None:
    """The library's name ("f32") of a dtype of NumPy, JAX or torch, or of its name; else None."""
    for text in (value, getattr(value, "name", None), getattr(value, "__name__", None), str(value)):
        if isinstance(text, str):
            text = text.removeprefix("torch.")
            found = text if text in _ops.DTYPES else _ops.NUMPY_DTYPE_NAMES.get(text)
            if found is not None:
                return found
    return None


def output_spec(kernel: str, name: str, value: Any, specs: Specs) -> TensorSpec:
    """The type of a result: like an argument (its name), (shape, dtype), or what has both."""
    if isinstance(value, str):
        if value in specs:
            return specs[value]
        raise InvalidArgumentError(
            f"{kernel}: outputs[{name!r}] is {value!r}, which is no argument of this call; it has "
            f"{', '.join(specs)}"
        )
    if isinstance(value, TensorSpec):
        return value
    pair = (
        (value.shape, value.dtype) if hasattr(value, "shape") and hasattr(value, "dtype") else value
    )
    if _is_list(pair) and len(pair) == 2:
        shape, dtype = pair
        if _is_int(shape):
            shape = (shape,)
        known = dtype_name(dtype)
        if known is not None and _is_list(shape) and all(map(_is_size, shape)):
            return TensorSpec(known, tuple(map(_plain, shape)))
    raise InvalidArgumentError(
        f"{kernel}: outputs[{name!r}] is {_given.came(value)}; it must be the name of an "
        "argument, a pair (shape, dtype), what has a shape and a dtype, or a function of "
        "arguments that gives one"
    )


def factors_of(kernel: str, rule: str, schema: _schema.Op) -> list[list[list[str]]]:
    """The factors of a sharding rule: of arguments and of results, one for each dimension."""
    sides = [[dims.split() for dims in side.split(",")] for side in rule.split("->")]
    results = [r.name for r in schema.results if r.kind != "scratch"]
    required = sum(not arg.optional for arg in schema.args)
    if (
        len(sides) != 2
        or not required <= len(sides[0]) <= len(schema.args)
        or len(sides[1]) != len(results)
        or not all(factor.isidentifier() for side in sides for dims in side for factor in dims)
        or any(len(set(dims)) < len(dims) for side in sides for dims in side)
    ):
        raise InvalidArgumentError(
            f"{kernel}: sharding is {rule!r}; it must have a name for each dimension of its "
            f"arguments ({', '.join(arg.name for arg in schema.args)}) and, behind '->', of its "
            f'results ({", ".join(results)}), as in "i j, j -> i"'
        )
    return sides


def _dims(kernel: str, name: str, value: Any) -> tuple[int, int, int]:
    dims = (value,) if _is_int(value) else tuple(value) if _is_list(value) else ()
    if not 1 <= len(dims) <= 3 or not all(map(_is_int, dims)):
        raise InvalidArgumentError(
            f"{kernel}: {name} is {_given.came(value)}; it must be 1 to 3 ints"
        )
    x, y, z = (*map(_plain, dims), 1, 1)[:3]
    return x, y, z


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _bytes(kernel: str, name: str, value: Any) -> int:
    if not _is_size(value):
        raise InvalidArgumentError(
            f"{kernel}: {name} is {_given.came(value)}; it must be a number of bytes"
        )
    return _plain(value)


def _is_symbolic(value: Any) -> bool:
    """Whether it stands for an int while torch traces for any size."""
    return type(value).__name__ == "SymInt"


def _is_int(value: Any) -> bool:
    return _given.is_int(value) or _is_symbolic(value)


def _is_size(value: Any) -> bool:
    return value >= 0 if _given.is_int(value) else _is_symbolic(value)


def _plain(value: Any) -> int:
    """An int of NumPy's as Python's; one that is symbolic stays."""
    made: int = value if _is_symbolic(value) else int(value)
    return made


# ---- Calls ---------------------------------------------------------------------------------------

kernels: list[Kernel] = []  # of this process, by their numbers


def _binder(kernel: Kernel) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """(arguments, scalars) of a call; made as dataclasses make theirs: nothing is quicker."""
    defaults: dict[str, Any] = {}
    names: dict[inspect._ParameterKind, list[str]] = {}
    for p in kernel.__signature__.parameters.values():
        value = ""
        if p.default is not p.empty:
            defaults[f"__default_{p.name}"] = p.default
            value = f"=__default_{p.name}"
        names.setdefault(p.kind, []).append(p.name + value)
    parts = names.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
    if named := names.get(inspect.Parameter.KEYWORD_ONLY):
        parts = [*parts, "*", *named]
    arrays, scalars = (
        "".join(f"{_schema.python_name(each.name)}, " for each in of)
        for of in (kernel.schema.args, kernel._scalars)
    )
    source = f"def bound({', '.join(parts)}):\n    return ({arrays}), ({scalars})\n"
    exec(compile(source, "<xla_gpu kernel>", "exec"), defaults)
    bound: Callable[..., Any] = defaults["bound"]
    bound.__qualname__ = kernel.name  # what a TypeError of a call begins with
    return bound


class _NegativeZero(float):
    """-0.0 as a key of caches, where it would be taken for 0.0."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


_negative_zero = _NegativeZero(-0.0)
_UNSIGNED = {int, bool, str, type(None)}  # what has no -0, and often comes


def as_key(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """The scalars of a call, told apart by more than `==`."""
    return tuple(
        [
            _negative_zero
            if s.__class__ not in _UNSIGNED
            and isinstance(s, float | numbers.Real)  # NumPy's too
            and not s
            and math.copysign(1, s) < 0
            else s
            for s in scalars
        ]
    )


# (kernel, arrays in the schema's order with None for absent ones, values of the scalars) -> results
FrontEnd = Callable[[Kernel, tuple[Any, ...], tuple[Any, ...]], Any]

_front_ends: dict[type, FrontEnd] = {}  # by the type of arrays seen


def _front_end(kernel: Kernel, array: Any) -> FrontEnd:
    """What calls kernels on arrays like this one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from xla_gpu.torch import _functions

        for known in (torch.Tensor, torch.nn.Parameter):
            _front_ends[known] = _functions.call_kernel
        return _functions.call_kernel
    try:
        from xla_gpu.jax import _kernels
    except ImportError:
        raise InvalidArgumentError(
            f"{kernel.name}: an argument is {type(array).__name__}; it must be a torch tensor, or "
            "an array where JAX is installed"
        ) from None
    _front_ends[type(array)] = _kernels.call
    return _kernels.call


# ---- Making them ---------------------------------------------------------------------------------


def cdiv(a: int, b: int) -> int:
    """A / b, rounded up: how many blocks of b cover a."""
    return -(-a // b)
