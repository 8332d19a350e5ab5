"""Puts the ops into torch's dispatcher for torchax's tensors.

torchax keeps a registry of its own, but calls what it finds there in place of the whole op, torch's
autograd included: a gradient through the op would silently be none. So the ops are registered where
torch itself looks once autograd is done, as rules for torchax's tensor classes and for the mode
that its environment enters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torchax import interop
from torchax.tensor import Tensor, XLADispatchMode
from torchax.view import View

from xla_gpu._errors import make_error
from xla_gpu.torch import _schema
from xla_gpu.torchax import _lowering

_TORCHAX = (Tensor, View)


def register() -> None:
    """Registers every op of torch.ops.xla_gpu for torchax's tensors; once a process."""
    for name in _schema.SCHEMAS:
        call = functools.partial(_call, getattr(_lowering, name))
        for kind in _TORCHAX:
            torch.library.register_torch_dispatch(
                f"{_schema.NAMESPACE}::{name}", kind, functools.partial(_on_tensors, call)
            )
        torch.library.register_torch_dispatch(
            f"{_schema.NAMESPACE}::{name}", XLADispatchMode, functools.partial(_in_mode, call)
        )


def _on_tensors(
    call: Callable[..., Any],
    cls: type,
    func: torch._ops.OpOverload,
    types: Sequence[type],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    return call(func, args, kwargs or {})


def _in_mode(
    call: Callable[..., Any],
    mode: XLADispatchMode,
    func: torch._ops.OpOverload,
    types: Sequence[type],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Within torchax's environment; tensors that are not its own take their ordinary way."""
    if any(issubclass(kind, _TORCHAX) for kind in types):
        return call(func, args, kwargs or {})
    return func(*args, **(kwargs or {}))


def _call(
    lowering: Callable[..., Any],
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """One call of a torch op, as JAX's: arrays out of the tensors, and tensors of the results."""
    schema = func._schema
    op = schema.name.removeprefix(f"{_schema.NAMESPACE}::")
    given = {argument.name: value for argument, value in zip(schema.arguments, args)} | kwargs
    arrays = {name: _to_jax(op, name, value) for name, value in given.items()}
    positional = [arrays.pop(argument.name) for argument, _ in zip(schema.arguments, args)]
    results = lowering(*positional, **arrays)
    written = [
        given[argument.name]
        for argument in schema.arguments
        if argument.is_write and given.get(argument.name) is not None
    ]
    if not written:
        return interop.torch_view(results)
    for tensor, new in zip(written, results, strict=True):
        _replace(tensor, new)
    return None


def _to_jax(op: str, name: str, value: Any) -> Any:
    if isinstance(value, _TORCHAX):
        return value.jax()
    if isinstance(value, torch.Tensor):
        raise make_error(
            3,
            f"{op}: {name} {_schema.describe(value)} is an ordinary tensor on {value.device} but "
            "others are torchax's; move it with .to('jax')",
        )
    return value


def _replace(tensor: Tensor | View, new: jax.Array) -> None:
    """Gives a tensor its new value; what a view shows changes in the tensor behind it too."""
    if isinstance(tensor, View):
        tensor.update(new)
    else:
        tensor.apply_jax_(lambda _: new)
