"""Kernels of the user's as torch ops.

An eager call goes straight to the library. Everything else (traces, transforms, other devices) goes
through one of a few ops in torch.ops.xla_gpu, which take any kernel:

    kernel(args, kernel, ints, floats, launch, result_types, definition) -> results
    kernel_N_(args, written, ...) -> N results, where the kernel has `in_place` arguments

`kernel` is the key of the library's op with the number of the `Kernel` in this process, which has
the rules that are Python functions. What functions of arguments gave (grid, result types, ...) are
numbers of the call, so that a graph holds them as expressions of its sizes. In an exported program
there is no number, and `definition` has all that another process needs.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from xla_gpu import _kernel, _ops
from xla_gpu import _schema as _schemas
from xla_gpu._errors import InvalidArgumentError, UnimplementedError
from xla_gpu._kernel import as_key
from xla_gpu.torch import _kernels, _schema

# Attributes that are no scalars, in the order in which calls carry them.
_LAUNCH = ("workspace_bytes", "shared_memory", "grid", "block")
_NO_SCALARS = frozenset((*_LAUNCH, "kernel", "definition", "result_types"))
# Results beside those in place that an op in torch.ops may have: a torch op has a fixed number.
_MAX_RESULTS_IN_PLACE = 8


class _Resolved(NamedTuple):
    """A call's attributes as torch carries them."""

    ints: tuple[int, ...]
    floats: tuple[float, ...]
    launch: tuple[int, ...]
    result_types: tuple[int, ...]


@functools.cache
def _scalars(op: _schemas.Op) -> tuple[_schemas.Attr, ...]:
    return tuple(attr for attr in op.attrs if attr.name not in _NO_SCALARS)


@functools.cache
def _launch(op: _schemas.Op) -> tuple[str, ...]:
    names = {attr.name for attr in op.attrs}
    return tuple(name for name in _LAUNCH if name in names)


def _encode(op: _schemas.Op, attrs: dict[str, Any]) -> _Resolved:
    floats = [attrs[a.name] for a in _scalars(op) if a.type == "float"]
    ints = [attrs[a.name] + 0 for a in _scalars(op) if a.type != "float"]
    launch: list[int] = []
    for name in _launch(op):
        launch += attrs[name] if name in ("grid", "block") else [attrs.get(name, 0)]
    types = attrs.get("result_types", ())
    return _Resolved(tuple(ints), tuple(floats), tuple(launch), tuple(types))


def _decode(op: _schemas.Op, call: _Resolved) -> dict[str, Any]:
    ints, floats, launch = iter(call.ints), iter(call.floats), iter(call.launch)
    try:
        attrs: dict[str, Any] = {"kernel": op.key}
        for attr in _scalars(op):
            value = next(floats) if attr.type == "float" else next(ints)
            attrs[attr.name] = bool(value) if attr.type == "bool" else value
        for name in _launch(op):
            if name in ("grid", "block"):
                attrs[name] = (next(launch), next(launch), next(launch))
            elif value := next(launch):
                attrs[name] = value
    except StopIteration:
        raise InvalidArgumentError(
            f"{op.name}: ints, floats or launch is too short ({call}); call the kernel itself"
        ) from None
    if call.result_types:
        attrs["result_types"] = call.result_types
    return attrs


def _types(ints: Sequence[Any]) -> Iterable[_ops.TensorSpec]:
    """Those in `result_types`: each a dtype's number, a rank and dimensions."""
    names = {number: name for name, number in _ops.DTYPES.items()}
    at = 0
    while at < len(ints):
        end = at + 2 + int(ints[at + 1])
        yield _ops.TensorSpec(names[int(ints[at])], tuple(ints[at + 2 : end]))
        at = end


class UserKernel(_kernels.Kernel):
    """A kernel of the user's, for calls that bring the same arguments.

    Options are the scalars that a user gives, or a `_Resolved`.

    Attributes:
      user: the kernel; None in a program that another process exported.
      kernel, definition: what torch's ops call it.
    """

    def __init__(
        self,
        op: _schemas.Op,
        user: _kernel.Kernel | None,
        kernel: str,
        names: tuple[str, ...],
        in_place: bool,
        definition: str = "",
    ) -> None:
        results = tuple(r for r in op.results if r.kind != "scratch")
        in_place = in_place and any(r.alias_of for r in results)
        super().__init__(_schema.Form(op.name, op, results, in_place), names)
        self.user, self.kernel, self.definition = user, kernel, definition
        if user is not None and user.gradient is not None:
            self.instead_of_gradient = "it writes in place" if self.written else ""
            self.gradients = self._gradients

    def attributes(
        self, tensors: _kernels.Tensors, options: Sequence[Any]
    ) -> tuple[_schemas.Op, dict[str, _ops.AttrValue]]:
        if isinstance(options, _Resolved):
            return self.form.op, _decode(self.form.op, options)
        assert self.user is not None
        if torch._C._get_tracing_state() is not None and self.user.reads_arguments:
            raise UnimplementedError(
                f"{self.name}: torch.jit.trace would fix what functions of arguments give for its "
                "example; use torch.export or torch.compile"
            )
        # A float that torch traces as any is a constant of the trace, as for all ops that take one.
        constants = [
            float(v)
            if isinstance(v, torch.SymFloat) or (a.type == "float" and isinstance(v, torch.SymInt))
            else v
            for a, v in zip(self.user._scalars, options)
        ]
        scalars = self.user.scalars(constants)
        specs = {n: _schema.spec_of(self.name, n, t) for n, t in zip(self.names, tensors)}
        return self.user.resolve(specs, scalars)

    def told(self, call: _schema.OpCall) -> dict[str, _ops.TensorSpec]:
        types = _types(call.attrs.get("result_types", ()))  # type: ignore[arg-type]
        untold = (r.name for r in self.results if not (r.alias_of or r.like in call.names))
        return dict(zip(untold, types))

    def dispatch(self, tensors: _kernels.Tensors, options: Sequence[Any]) -> Any:
        given = dict(zip(self.names, tensors))
        args = [given.get(a.name) for a in self.form.op.args]
        op = _ops_by_name().kernel
        if self.written:
            writes = {r.alias_of for r in self.results if r.alias_of}
            written = [t for a, t in zip(self.form.op.args, args) if a.name in writes]
            args = [t for a, t in zip(self.form.op.args, args) if a.name not in writes]
            op = getattr(_ops_by_name(), _in_place_op(self.name, len(self.results) - len(written)))
            return op.default(args, written, *self._told(tensors, options))
        return op.default(args, *self._told(tensors, options))

    def functional(
        self, tensors: _kernels.Tensors, options: Sequence[Any]
    ) -> Sequence[torch.Tensor]:
        given = dict(zip(self.names, tensors))
        args = [given.get(a.name) for a in self.form.op.args]
        results: Sequence[torch.Tensor] = _ops_by_name().kernel.default(
            args, *self._told(tensors, options)
        )
        return results

    def _told(self, tensors: _kernels.Tensors, options: Sequence[Any]) -> tuple[Any, ...]:
        """What torch's ops take beside tensors."""
        if isinstance(options, _Resolved):
            return (self.kernel, *options, self.definition)
        op, attrs = self.attributes(tensors, options)
        resolved = _encode(op, attrs)
        assert self.user is not None
        local = f"{op.key}#{self.user.number}"
        if _is_exporting is None:
            return (f"{local}.{_PROCESS}", *resolved, op.definition)
        if _is_exporting():
            return (op.key, *resolved, _schemas.portable(op))
        return (local, *resolved, "")

    def _gradients(
        self,
        options: Any,
        tensors: _kernels.Tensors,
        results: _kernels.Tensors,
        gradients: _kernels.Tensors,
    ) -> Sequence[torch.Tensor | None]:
        assert self.user is not None and self.user.gradient is not None
        _, attrs = self.attributes(tensors, options)
        scalars = self.user.user_scalars(attrs)
        made = self.user.gradient(tensors, results, gradients, **scalars)
        if not isinstance(made, tuple | list) or len(made) != len(tensors):
            raise InvalidArgumentError(
                f"{self.name}: gradient gave {type(made).__name__}; it must give a tuple of "
                f"{len(tensors)}, one for each argument (None: it has none)"
            )
        return made


def _ops_by_name() -> Any:
    return torch.ops.xla_gpu


def _in_place_op(kernel: str, results: int) -> str:
    if results > _MAX_RESULTS_IN_PLACE:
        raise UnimplementedError(
            f"{kernel}: it has {results} results beside those in place; torch.compile, transforms "
            f"and other devices than CPU and CUDA take at most {_MAX_RESULTS_IN_PLACE}"
        )
    return f"kernel_{results}_"


# Where torch does not say it, calls hold the definition as well as the number, which counts in this
# process alone.
_is_exporting = getattr(torch.compiler, "is_exporting", None)
_PROCESS = os.urandom(8).hex()


# ---- Eager calls ---------------------------------------------------------------------------------


def bind(user: _kernel.Kernel, arrays: tuple[Any, ...]) -> tuple[UserKernel, _kernels.Tensors]:
    """The call of the kernel itself."""
    run = _without_optional.get(user)
    if run is not None:
        return run, arrays
    run = _whole(user, tuple([t is not None for t in arrays]))
    if not any(arg.optional for arg in user.schema.args):
        _without_optional[user] = run
    return run, tuple([t for t in arrays if t is not None])


_without_optional: dict[_kernel.Kernel, UserKernel] = {}


@functools.cache
def _whole(user: _kernel.Kernel, present: tuple[bool, ...]) -> UserKernel:
    """For calls of the kernel itself, which return every result; `present`: of the arguments."""
    op = user.schema
    for arg, is_here in zip(op.args, present):
        if not is_here and (not arg.optional or any(r.alias_of == arg.name for r in op.results)):
            raise InvalidArgumentError(
                f"{user.name}: {arg.name} is None; it must be a torch.Tensor"
            )
    names = tuple(a.name for a, is_here in zip(op.args, present) if is_here)
    run = UserKernel(op, user, "", names, in_place=True)
    run.returns(itemgetter(*range(len(run.results))))
    return run


def results_of(run: UserKernel, tensors: _kernels.Tensors, made: Any) -> Any:
    """All results, of those that a torch op gave and the arguments that it wrote."""
    outputs = iter((made,) if isinstance(made, torch.Tensor) else made or ())
    given = dict(zip(run.names, tensors))
    writes = run.form.in_place
    return run.pick(
        [given[r.alias_of] if writes and r.alias_of else next(outputs) for r in run.results]
    )


# ---- The ops in torch.ops ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """What a torch op's `kernel` names; calls bring arguments, some of which are written."""

    op: _schemas.Op
    user: _kernel.Kernel | None
    is_written: tuple[bool, ...]
    runs: dict[Any, UserKernel] = dataclasses.field(default_factory=dict)

    def merge(self, args: Sequence[Any], written: Sequence[Any] | None) -> list[Any]:
        """One for each argument, in the library's order."""
        if written is None:
            return list(args)
        others, writes = iter(args), iter(written)
        return [next(writes if is_written else others) for is_written in self.is_written]


_found: dict[str, _Found] = {}


def _of_text(key: str) -> str:
    """A key without the digest of what the kernel's sources include, which may be others here."""
    name, at, digests = key.rpartition("@")
    return f"{name}{at}{digests.partition('+')[0]}"


def _find(kernel: str, definition: str) -> _Found:
    found = _found.get(kernel)
    if found is None:
        key, _, label = kernel.rpartition("#")
        number, _, process = label.partition(".")
        is_numbered = bool(key) and number.isdecimal()
        is_here = is_numbered and process in ("", _PROCESS) and int(number) < len(_kernel.kernels)
        user = _kernel.kernels[int(number)] if is_here else None
        if definition and user is None:
            op = _schemas.define(definition, None)
            if _of_text(op.key) != _of_text(key if is_numbered else kernel):
                raise InvalidArgumentError(
                    f"the call's kernel is '{kernel}' but its definition is that of '{op.key}'"
                )
        else:
            op = _schemas.schema(kernel if user is None else key)
        writes = {r.alias_of for r in op.results if r.alias_of}
        found = _found[kernel] = _Found(op, user, tuple(a.name in writes for a in op.args))
    return found


def _run_of(
    kernel: str, definition: str, args: Sequence[Any], written: Sequence[Any] | None
) -> tuple[UserKernel, _kernels.Tensors]:
    found = _found.get(kernel) or _find(kernel, definition)
    each = found.merge(args, written)
    present = tuple([t is not None for t in each])
    key = present, written is None
    run = found.runs.get(key)
    if run is None:
        names = tuple(a.name for a, is_here in zip(found.op.args, present) if is_here)
        run = UserKernel(found.op, found.user, kernel, names, written is not None, definition)
        if written is None:
            run.returns(itemgetter(slice(len(run.results))))
        found.runs[key] = run
    return run, tuple([t for t in each if t is not None])


_Inputs = tuple[UserKernel, _kernels.Tensors, _Resolved]


def _inputs(args: Sequence[torch.Tensor | None], kernel: str, *told: Any) -> _Inputs:
    *resolved, definition = told if len(told) == 5 else (*told, "")
    run, tensors = _run_of(kernel, definition, args, None)
    return run, tensors, _resolved(*resolved)


def _inputs_in_place(
    args: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor], kernel: str, *told: Any
) -> _Inputs:
    *resolved, definition = told if len(told) == 5 else (*told, "")
    run, tensors = _run_of(kernel, definition, args, written)
    return run, tensors, _resolved(*resolved)


def _resolved(*lists: Any) -> _Resolved:
    ints, floats, launch, types = (() if given is None else given for given in lists)
    return _Resolved(tuple(ints), as_key(floats), tuple(launch), tuple(types))


# ---- vmap ----------------------------------------------------------------------------------------


def _batch(info: Any, in_dims: Sequence[Any], *given: Any) -> Any:
    """Vmap's rule of the ops, as the kernel's `vmap` says."""
    in_place = not isinstance(given[1], str)
    run, tensors, options = _inputs_in_place(*given) if in_place else _inputs(*given)
    user = run.user
    if user is None or user.vmap is None:
        raise UnimplementedError(
            f"{run.name}: vmap is not supported; {run.form.op.instead_of_batching}"
        )
    found = _found[run.kernel]
    values = found.merge(given[0], given[1] if in_place else None)
    dims = [
        d
        for d, v in zip(found.merge(in_dims[0], in_dims[1] if in_place else None), values)
        if v is not None
    ]
    moved = tuple(t if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims))
    for i in run.written:
        if dims[i] is None:
            raise InvalidArgumentError(
                f"{run.name}: {run.names[i]} is written in place but has no batch dimension, and "
                "others have; give it one (in_dims)"
            )
    if user.vmap == "sequential":
        made = _one_by_one(run, moved, dims, options, info.batch_size)
    else:
        lead = 1 if user.vmap == "expand_dims" else info.batch_size
        batch = tuple(t.expand(lead, *t.shape) if d is None else t for t, d in zip(moved, dims))
        made = _batched(run, batch, options)
    if not in_place:
        return made, [0] * len(made)
    results = tuple(made) if len(made) > 1 else made[0] if made else None
    return results, (0,) * len(made) if len(made) > 1 else 0 if made else None


def _outputs(run: UserKernel, tensors: _kernels.Tensors, options: Any) -> list[torch.Tensor]:
    made = run.dispatch(tensors, options)
    return [made] if isinstance(made, torch.Tensor) else list(made or ())


def _one_by_one(
    run: UserKernel, tensors: _kernels.Tensors, dims: Sequence[Any], options: Any, size: int
) -> list[torch.Tensor]:
    rows = []
    for i in range(size):
        rows.append(
            _written_back(run, [t if d is None else t[i] for t, d in zip(tensors, dims)], options)
        )
    if rows:
        return [torch.stack(each) for each in zip(*rows)]
    one = [t if d is None else t.new_zeros(t.shape[1:]) for t, d in zip(tensors, dims)]
    return [t.new_empty((0, *t.shape)) for t in _outputs(run, tuple(one), options)]


def _batched(run: UserKernel, tensors: _kernels.Tensors, options: Any) -> list[torch.Tensor]:
    """The call on whole batches, whose grid and result types are their own."""
    user = run.user
    assert user is not None
    _, attrs = run.attributes(tensors, options)
    whole_run = _whole(user, tuple(a.name in run.names for a in user.schema.args))
    given = user.user_scalars(attrs)
    scalars = tuple(given[a.name] for a in _scalars(user.schema) if not a.derived)
    return _written_back(whole_run, tensors, scalars)


def _written_back(
    run: UserKernel, tensors: Sequence[torch.Tensor], options: Any
) -> list[torch.Tensor]:
    """A call whose arguments in place may be views of any strides."""
    dense = [t.contiguous() if i in run.written else t for i, t in enumerate(tensors)]
    made = _outputs(run, tuple(dense), options)
    for i in run.written:
        if dense[i] is not tensors[i]:
            tensors[i].copy_(dense[i])
    return made


# ---- Registration --------------------------------------------------------------------------------

_TOLD = "str kernel, SymInt[] ints, float[] floats, SymInt[] launch, SymInt[] result_types"


def _torch_ops() -> Iterable[tuple[str, _kernels.TorchOp]]:
    told = f'{_TOLD}, str definition=""'
    yield (
        "kernel",
        _kernels.TorchOp(f"kernel(Tensor?[] args, {told}) -> Tensor[]", _inputs, vmap=_batch),
    )
    for count in range(_MAX_RESULTS_IN_PLACE + 1):
        returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        name = f"kernel_{count}_"
        schema = f"{name}(Tensor?[] args, Tensor(a!)[] written, {told}) -> {returned}"
        yield name, _kernels.TorchOp(schema, _inputs_in_place, in_place=True, vmap=_batch)


OPS = dict(_torch_ops())
