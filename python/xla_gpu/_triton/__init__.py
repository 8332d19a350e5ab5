"""`xla_gpu.triton_kernel`: functions of Triton as kernels; loaded without Triton."""

from __future__ import annotations

import inspect
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _given, _kernel, _kernels, _schema
from xla_gpu._errors import at_callers_line
from xla_gpu._kernel import Kernel, Scalars, Specs
from xla_gpu._ops import AttrValue, TensorSpec
from xla_gpu._triton._compile import Constant
from xla_gpu._triton._decorators import undecorated
from xla_gpu._triton._function import TritonFunction, Variant
from xla_gpu._triton._meta import is_function


@_given.checked(options=(_given.by_name, "a dict by the names of Triton's options"))
def triton_kernel(
    fn: Any,
    *,
    grid: Any,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    constexprs: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    scalars: Mapping[str, Any] | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    num_ctas: int | None = None,
    options: Mapping[str, Any] | None = None,
    arch: str | int | None = None,
    name: str | None = None,
    host: Any = None,
    capture: bool = True,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> TritonKernel:
    """A function of Triton as a kernel; Triton 3.2 or newer compiles it, this library launches it.

    A call gives what the function takes, without the outputs: arrays, numbers, None, and constants.
    It is specialised as Triton does: on dtypes, None, an int of 1 and ints divisible by 16 (see
    `do_not_specialize`). Functions below are given what their parameters name: arguments and
    outputs with `shape`, `dtype` ("f32"), `size`, `numel()` and `stride()`, numbers and constants;
    a function with one parameter of another name (`lambda meta: ...`) a dict of all.

    Args:
      fn: a @triton.jit function, which may be under @triton.autotune and @triton.heuristics.
        Configurations are timed once for a key on the GPU (XLA_GPU_LOG=info shows it), the choice
        is kept on disk; without a GPU the first is taken. Hooks are refused.
      grid: programs, 1 to 3 ints, or a function that gives them.
      outputs: by the name of a pointer: an argument's name (like that), (shape, dtype), or a
        function that gives one of these.
      in_place: pointers that are arguments and results.
      constexprs: by name constants, or functions that give them; or one function that gives all. A
        call may say others.
      scalars: by name numbers that calls need not give: a default, or a function.
      num_warps, num_stages, num_ctas, options: Triton's; `options` by name ("maxnreg", ...).
      arch: the GPU to compile for ("sm_90"); by default this machine's, and without one, where
        there is a `host` to run, sm_90.
      name: the custom call's target; the function's name if not given.
      host, capture, vmap, gradient, sharding, doc: as of `cuda_kernel`.

    Returns:
      The kernel: `kernel(x, y, n=1000, BLOCK=128)`.

    Raises:
      InvalidArgumentError (a ValueError): for a description that does not fit the function; when
        called, for what does not compile.
      UnimplementedError: for hooks, and other things of Triton's own launches.
      XlaGpuError (FAILED_PRECONDITION): without Triton 3.2 or newer.
    """
    given = {"num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas}
    base = undecorated(fn)
    name = name or str(getattr(base, "__name__", base))
    members: dict[str, Any] = {"name": name, "capture": capture}
    members["doc"] = inspect.cleandoc((base.__doc__ or "") if doc is None else doc)
    if host is not None:
        members["implementations"] = {"Host": _kernels.host_of(name, host)}
    function = TritonFunction(
        fn,
        grid=grid,
        outputs=outputs or {},
        in_place=in_place,
        constexprs=constexprs,
        scalars=scalars or {},
        options={**given, **(options or {})},
        members=members,
        arch=arch,
    )
    return TritonKernel(function, vmap=vmap, gradient=gradient, sharding=sharding)


class TritonKernel:
    """A function of Triton that can be called on the arrays of any framework here.

    Attributes:
      name: the custom call's target.
      number: its position in `kernels`.
    """

    def __init__(self, function: TritonFunction, **rules: Any) -> None:
        self.name = function.name
        self._function, self._rules = function, rules
        self._kernels: dict[Any, _Form] = {}
        self._sites: dict[Any, tuple[_Form, list[int], dict[str, int], dict[str, Any]]] = {}
        self._constants = {n for n, param in function.params.items() if param.is_constexpr}
        self._positional = [name for name in function.inputs if name not in self._constants]
        self.__doc__ = function.members["doc"] or type(self).__doc__
        self.__signature__ = _signature(function)
        self.number = len(kernels)
        kernels.append(self)

    def __repr__(self) -> str:
        return f"<xla_gpu Triton kernel {self.name}{self.__signature__}>"

    @at_callers_line
    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the kernel; a result, or a tuple of them.

        Raises:
          TypeError: for a wrong count or keyword.
          InvalidArgumentError (a ValueError): for a call that cannot be, or does not compile.
        """
        if _is_dynamo_compiling():
            from xla_gpu.torch import _traced

            outputs = _traced.call_triton(self.number, args, named)
            given = {**dict(zip(self._positional[: len(args)], args)), **named}
            results = [*outputs, *(given[name] for name in self._function.in_place)]
            return results[0] if len(results) == 1 else tuple(results)
        kernel, arrays, scalars = self.choose(args, named)
        return kernel(*arrays, **scalars)

    def choose(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Kernel, list[Any], dict[str, Any]]:
        """The kernel of a call, and what that is called with."""
        try:
            key = (len(args), *named, *map(_kind, args))
            if named:
                key += tuple(
                    Constant(v).key if n in self._constants else _kind(v) for n, v in named.items()
                )
        except TypeError:  # of a kind that is not kept
            key = None
        kept = self._sites.get(key)
        if kept is not None:
            kernel, at_arrays, at_scalars, defaults = kept
            given = (*args, *named.values())
            scalars = {name: given[i] for name, i in at_scalars.items()}
            return kernel, [given[i] for i in at_arrays], {**scalars, **defaults}
        values = self._bind(args, named)
        kernel = self._form(values, _unaligned(values))
        if key is not None:
            self._keep(key, kernel, [*self._positional[: len(args)], *named], values)
        arrays = [v for v in values.values() if _is_array(v)]
        return kernel, arrays, {kernel.called[n]: values[n] for n in kernel.numbers}

    def _keep(
        self, key: tuple[Any, ...], kernel: _Form, names: list[str], values: Mapping[str, Any]
    ) -> None:
        """Remembers which of a call's arguments are what, for calls that differ in values alone."""
        if kernel.has_numbers_inside:
            return
        at = {name: i for i, name in enumerate(names)}
        self._sites[key] = (
            kernel,
            [at[name] for name, value in values.items() if _is_array(value)],
            {kernel.called[name]: at[name] for name in kernel.numbers if name in at},
            {kernel.called[name]: values[name] for name in kernel.numbers if name not in at},
        )

    @at_callers_line
    def variant(self, *args: Any, **named: Any) -> Variant:
        """What the library is told of such a call: a definition and the call's attributes.

        For C and C++ programs, and to look at. Arrays may be anything with a shape and a dtype.
        """
        values = self._bind(args, named)
        specs = {n: _spec(self._function, n, v) for n, v in values.items() if _is_array(v)}
        return self._function.resolve({**values, **specs}, _unaligned(values))

    def _bind(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call by parameter, in order; those without functions that give them."""
        function = self._function
        try:
            bound = self.__signature__.bind_partial(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        decided = function.decided.keys() & bound.keys()
        if decided:
            one = min(decided)
            raise function.error(f"{one} is given, which {function.decided[one]} says")
        values = {}
        for name in function.inputs:
            if name in bound:
                values[name] = _plain(bound[name])
            elif name in function.scalars and not is_function(function.scalars[name]):
                values[name] = _plain(function.scalars[name])
            elif function.params[name].has_default and not function.params[name].is_constexpr:
                values[name] = _plain(function.params[name].default)
        return values

    def _form(self, values: Mapping[str, Any], unaligned: frozenset[str]) -> _Form:
        """The kernel of calls with such values: of these kinds, with these constants."""
        attributes = self._function.attributes(values)
        arrays = [name for name, value in values.items() if _is_array(value)]
        constants = {
            name: value
            for name, value in values.items()
            if name not in arrays and name not in attributes
        }
        key = (
            tuple(arrays),
            tuple((name, type(values[name])) for name in attributes),
            tuple((name, Constant(value).key) for name, value in constants.items()),
            unaligned,
        )
        if key not in self._kernels:
            numbers = {name: type(values[name]) for name in attributes}
            made = _Form(self._function, arrays, numbers, constants, unaligned, self._rules)
            self._kernels[key] = made
        return self._kernels[key]


kernels: list[TritonKernel] = []  # of this process, by their numbers


def _is_dynamo_compiling() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


class _Form(Kernel):
    """The calls of a Triton kernel with the same arrays present and the same constants.

    Their schema does not depend on dtypes; each variant has one of its own besides.
    """

    def __init__(
        self,
        function: TritonFunction,
        arrays: list[str],
        numbers: dict[str, type],
        constants: dict[str, Any],
        unaligned: frozenset[str],
        rules: Mapping[str, Any],
    ) -> None:
        self.function, self.numbers = function, numbers
        self.called = function.called
        self._present, self._constants, self._unaligned = arrays, constants, unaligned
        self._names = {called: name for name, called in function.called.items()}
        # Numbers that calls have no room for: another value is another kernel.
        self.has_numbers_inside = any(
            isinstance(value, bool | int | float) and not function.params[name].is_constexpr
            for name, value in constants.items()
        )
        super().__init__(function.members, outputs={}, **rules)

    def _define(self, members: Mapping[str, Any]) -> _schema.Op:
        """The schema of all variants, which none of them is."""
        attributes = [
            _schema.Attr(
                name=self.called[name],
                type=kind.__name__,
                default=None,
                none_is_default=False,
                keyword_only=True,
                derived=False,
                dtypes=(),
                environment="",
                doc="",
            )
            for name, kind in self.numbers.items()
        ]
        arguments = [
            _schema.Arg(self.called[n], (), False, False, False, "") for n in self._present
        ]
        of = {**dict.fromkeys(self.function.outputs, ""), **{n: n for n in self.function.in_place}}
        results = [
            _schema.Result(
                name=self.called[name],
                kind="alias" if alias else "output",
                alias_of=alias and self.called[alias],
                only_with="",
                form="",
                like="",
                rank=0,
                dtype="",
                doc="",
            )
            for name, alias in of.items()
        ]
        name, doc = str(self._definition["name"]), str(self._definition["doc"])
        return _schema.Op(
            name=name,
            key="",
            target=name,
            doc=doc,
            platforms=("CUDA",),
            args=tuple(arguments),
            results=tuple(results),
            attrs=tuple(attributes),
            instead_of_gradient="give the kernel a gradient",
            instead_of_batching="give the kernel a vmap rule",
            kernel=self,
        )

    def resolve(self, specs: Specs, scalars: Scalars) -> tuple[_schema.Op, dict[str, AttrValue]]:
        specs, scalars = _kernel.exact(specs, scalars)
        given = {self._names[called]: value for called, value in {**specs, **scalars}.items()}
        made = self.function.resolve({**self._constants, **given}, self._unaligned)
        schema = _schema.define(made.definition, self)
        return schema, {**made.attributes, "kernel": schema.key}


class _Derived:
    """A function of a call's arguments, as the signature shows it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            self._names = ", ".join(inspect.signature(function).parameters)
        except ValueError:  # a builtin, which tells no names
            self._names = "arguments"

    def __repr__(self) -> str:
        return f"<function of {self._names}>"


def _signature(function: TritonFunction) -> inspect.Signature:
    """The function's own, without outputs and what decorators say; constants have to be named."""
    parameters = []
    for name in function.inputs:
        param = function.params[name]
        default = param.default if param.has_default else inspect.Parameter.empty
        named = bool(param.is_constexpr)
        kind = inspect.Parameter.KEYWORD_ONLY if named else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = function.scalars.get(name, default)
        if is_function(default):
            default = _Derived(default)
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(
        sorted(parameters, key=lambda p: p.kind), __validate_parameters__=False
    )


def _plain(value: Any) -> Any:
    """A number of NumPy's or of Triton's as Python's own; anything else as it is."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _is_array(value: Any) -> bool:
    return (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and not isinstance(value, numbers.Number)
    )


def _kind(value: Any) -> Any:
    """What an argument is to the choice of a kernel; TypeError where that is not only its type."""
    kind = type(value)
    if kind in (bool, int, float, type(None)):
        return kind
    if not _is_array(value):
        raise TypeError
    return (kind, _is_unaligned(value))


def _unaligned(values: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in values.items() if _is_unaligned(value))


def _is_unaligned(value: Any) -> bool:
    """Whether a tensor of torch's is at an address that Triton may not take as aligned.

    XLA's buffers are aligned; torch's may be slices of others. Fake ones have no address.
    """
    if not hasattr(value, "storage_offset"):
        return False
    try:
        return bool(value.data_ptr() % 16)
    except RuntimeError:
        return bool(value.storage_offset() * value.element_size() % 16)


def _spec(function: TritonFunction, name: str, array: Any) -> TensorSpec:
    dtype = _kernel.dtype_name(array.dtype)
    if dtype is None:
        raise function.error(f"{name} is of dtype {array.dtype}, which XLA does not have")
    return TensorSpec(dtype, tuple(array.shape))
