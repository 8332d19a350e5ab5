"""`xla_gpu.torch_kernel`: functions on torch tensors, for kernels that PyTorch alone can launch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _gate, _given, _kernel
from xla_gpu._errors import InvalidArgumentError, NotFoundError
from xla_gpu._kernel import Kernel
from xla_gpu._kernels import arguments_of, host_of, make, platforms_of

_NUMBERS: dict[Any, str] = {bool: "pred", int: "i64", float: "f64"}
_NUMBERS |= {kind.__name__: dtype for kind, dtype in _NUMBERS.items()}  # as annotations may be


@_given.checked()
def torch_kernel(
    fn: Callable[..., Any],
    *,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    arguments: Sequence[Any] | None = None,
    parameters: Sequence[str | None] | None = None,
    platform: str | Sequence[str] = ("CUDA", "Host"),
    name: str | None = None,
    host: Any = None,
    capture: bool = False,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A Python function on torch tensors: for kernels that PyTorch alone can launch.

    Whatever the framework of a call, `fn` gets torch tensors made over its buffers (nothing is
    copied), under torch.no_grad(), and on CUDA with the call's stream and device as torch's current
    ones. It is called once for each call at run time, never while one is traced, and must only
    enqueue work on that stream. Its tensors end with the call: one that is kept is an error.

    What a call takes is read from the parameters of `fn`. Those that `outputs` names are tensors to
    write. Those annotated as int, float or bool, or with such a default, are scalars, which a call
    gives by name. One whose default is None is an optional array; other defaults stay. All else are
    arrays.

    Args:
      fn: the function. An output that is none of its parameters is what it returns, which is copied
        there: a tensor of the same shape, dtype and device, or a tuple of as many as there are such
        outputs. If all are parameters, what it returns does not matter.
      outputs, in_place, name, vmap, gradient, sharding, doc: as of `cuda_kernel`.
      scalars: by name what `fn` does not say of itself: a dtype ("i32", int), a default, (dtype,
        default), or (dtype, function of arguments). Python's int, float and bool are i64, f64 and
        pred.
      arguments: names of the arrays, or {"name", "dtypes", "optional"}: where some are optional,
        and where `fn` has no signature to read, as PyTorch's own functions and ops.
      parameters: what `fn` takes by position, in order: names, or None for a None; by default those
        of its signature, else arguments, outputs, scalars.
      platform: "CUDA", "Host" or both.
      host: for CPUs, where `fn` is for CUDA alone: a kernel of `host_kernel` or `torch_kernel`.
      capture: whether XLA may replay the call in command buffers: only if `fn` allocates nothing
        and does the same every time, as it then runs once.

    Returns:
      The kernel: `kernel(x, y, alpha=2.0)`. What `fn` raises becomes an error of XLA's with its
      type, text and line.

    Raises:
      InvalidArgumentError (a ValueError): for a description that does not fit `fn`.
      NotFoundError: torch is not installed.
    """
    if not callable(fn):
        raise InvalidArgumentError(
            f"torch_kernel: fn is {type(fn).__name__} {fn!r}; it must be a function"
        )
    name = name or getattr(fn, "__name__", None)
    if name is None or name == "<lambda>":
        raise InvalidArgumentError("torch_kernel: name is None; a function without one needs it")
    try:
        from xla_gpu.torch import _callback
    except ImportError as e:
        raise NotFoundError(f"{name}: a torch_kernel needs PyTorch: {e}; pip install torch") from e
    outputs = dict(outputs or {})
    taken = _read(name, fn, outputs, dict(scalars or {}), arguments_of(arguments), parameters)
    returned = [output for output in outputs if output not in taken.parameters]
    names = [*taken.parameters, *returned]
    code = {
        "kind": "dlpack",
        "address": _callback.address_of(
            fn,
            [_dtype(name, one, taken.scalars) for one in names],
            taken.by_name,
            returned,
        ),
        "gate": _gate.GATE,
        "parameters": names,
    }
    implementations: dict[str, Any] = dict.fromkeys(platforms_of(name, platform), code)
    if host is not None:
        implementations["Host"] = host_of(name, host)
    return make(
        name,
        implementations,
        outputs=outputs,
        in_place=in_place,
        scalars=taken.scalars,
        parameters=None,
        workspace=None,
        rules={"vmap": vmap, "gradient": gradient, "sharding": sharding},
        doc=doc,
        capture=capture,
        arguments=taken.arguments,
    )


@dataclasses.dataclass
class _Taken:
    """What a function takes: its parameters in order, the last ones of which by name."""

    parameters: list[str | None]
    by_name: list[str]
    arguments: list[dict[str, Any]]
    scalars: dict[str, Any]


def _read(
    name: str,
    fn: Callable[..., Any],
    outputs: Mapping[str, Any],
    scalars: dict[str, Any],
    arguments: list[dict[str, Any]] | None,
    parameters: Sequence[str | None] | None,
) -> _Taken:
    """What `fn` takes, by what is said of it and by its signature."""
    signature = None if parameters is not None else _signature(fn)
    known = [str(one.get("name")) for one in arguments or ()]
    taken = _Taken([], [], list(arguments or ()), {})
    for scalar, given in scalars.items():
        number = signature and scalar in signature and _number(signature[scalar])
        taken.scalars[scalar] = _typed(given, number or None)
    if signature is None:
        if arguments is None:
            raise InvalidArgumentError(
                f"{name}: arguments is None; {fn!r} has no signature that names what it takes: "
                "give arguments, or wrap it in a def"
            )
        taken.parameters = list(parameters or [*known, *outputs, *scalars])
        return taken
    for p in signature.values():
        number = _number(p)
        if p.name not in {*known, *outputs, *scalars}:
            if number is not None:
                taken.scalars[p.name] = number if p.default is p.empty else (number, p.default)
            elif arguments is None and (p.default is p.empty or p.default is None):
                taken.arguments.append({"name": p.name, "optional": p.default is None})
            elif p.default is p.empty or p.kind is p.POSITIONAL_ONLY:
                raise InvalidArgumentError(
                    f"{name}: the function's parameter {p.name} is no argument, output or scalar; "
                    f"arguments has {', '.join(known)}"
                )
            else:
                continue  # which stays at its default
        taken.parameters.append(p.name)
        if p.kind is not p.POSITIONAL_ONLY:
            taken.by_name.append(p.name)
    for what, names in (("argument", known), ("scalar", scalars)):
        for one in names:
            if one not in taken.parameters:
                raise InvalidArgumentError(
                    f"{name}: {what} {one} is no parameter of the function, which takes "
                    f"{', '.join(signature)}"
                )
    return taken


def _signature(fn: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters by name; None where they are not all told."""
    try:
        parameters = dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    return {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}


def _number(p: inspect.Parameter) -> str | None:
    """The dtype that a parameter's annotation or default tells; None of what is no number."""
    annotated = p.annotation if isinstance(p.annotation, type | str) else None
    return _NUMBERS.get(annotated) or _NUMBERS.get(type(p.default))


def _typed(given: Any, number: str | None) -> Any:
    """A scalar's description with the dtype that Python's types tell, where none is said."""
    if isinstance(given, type | str):
        return _NUMBERS.get(given, given)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], type | str):
        return _NUMBERS.get(given[0], given[0]), given[1]
    dtype = number or _NUMBERS.get(type(given))
    is_value = isinstance(given, bool | int | float) or callable(given)
    return (dtype, given) if dtype is not None and is_value else given


def _dtype(name: str, parameter: str | None, scalars: Mapping[str, Any]) -> str | None:
    """The dtype of a parameter that is a scalar, else None."""
    if parameter is None or parameter not in scalars:
        return None
    given = scalars[parameter]
    dtype = _kernel.dtype_name(given[0] if isinstance(given, tuple) else given)
    if dtype is None:
        raise InvalidArgumentError(
            f"{name}: scalars[{parameter!r}] is {given!r}, which tells no dtype; it must be a "
            "dtype, a default, (dtype, default), or (dtype, function of arguments)"
        )
    if dtype in ("f16", "bf16", "f8e5m2", "f8e4m3fn"):
        raise InvalidArgumentError(
            f"{name}: scalar {parameter} is of type {dtype}; allowed are pred, ints, f32 and f64"
        )
    return dtype
