"""Puts the ops into torch's dispatcher for torchax's tensors.

torchax keeps a registry of its own, but calls what it finds there in place of the whole op, torch's
autograd included: a gradient through the op would silently be none. So the ops are registered where
torch itself looks once autograd is done, as rules for torchax's tensor classes and for the mode
that its environment enters.
"""

from __future__ import annotations

import dataclasses
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
    """Registers every op of torch.ops.xla_gpu for torchax's tensors; once a process.

    Raises:
      ImportError: for a torch older than 2.5.
    """
    if not hasattr(torch.library, "register_torch_dispatch"):
        raise ImportError(
            f"xla_gpu.torchax needs torch 2.5 or later (torch.library.register_torch_dispatch); "
            f"this is {torch.__version__}"
        )
    for name in _schema.SCHEMAS:
        op = _Op.of(name)
        for kind, rule in (
            (Tensor, op.on_tensors),
            (View, op.on_tensors),
            (XLADispatchMode, op.in_mode),
        ):
            torch.library.register_torch_dispatch(f"{_schema.NAMESPACE}::{name}", kind, rule)


@dataclasses.dataclass(frozen=True)
class _Op:
    """One torch op on torchax's tensors.

    Attributes:
      name: "update_kv_cache_".
      lowering: the function of _lowering that it runs.
      arguments: the names of its arguments, in the schema's order.
      written: those that it updates in place.
    """

    name: str
    lowering: Callable[..., Any]
    arguments: tuple[str, ...]
    written: tuple[str, ...]

    @staticmethod
    def of(name: str) -> _Op:
        """The op of this name in torch.ops.xla_gpu."""
        op = getattr(getattr(torch.ops, _schema.NAMESPACE), name).default
        arguments = op._schema.arguments
        written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        names = tuple(a.name for a in arguments)
        return _Op(name, getattr(_lowering, name), names, tuple(written))

    def on_tensors(
        self,
        cls: type,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The rule of a tensor class: outside of torchax's environment."""
        return self._run(args, kwargs or {})

    def in_mode(
        self,
        mode: XLADispatchMode,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The rule within the environment; tensors that are not torchax's take their own way."""
        if any(issubclass(kind, _TORCHAX) for kind in types):
            return self._run(args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Arrays out of the tensors, the call in JAX, and tensors of its results."""
        positional = [self._to_jax(name, value) for name, value in zip(self.arguments, args)]
        named = {name: self._to_jax(name, value) for name, value in kwargs.items()}
        results = self.lowering(*positional, **named)
        if not self.written:
            return interop.torch_view(results)
        given = {**dict(zip(self.arguments, args)), **kwargs}
        tensors = [given[name] for name in self.written if given.get(name) is not None]
        for tensor, new in zip(tensors, results, strict=True):
            _replace(tensor, new)
        return None

    def _to_jax(self, name: str, value: Any) -> Any:
        if isinstance(value, _TORCHAX):
            return value.jax()
        if isinstance(value, torch.Tensor):
            raise make_error(
                3,
                f"{self.name}: {name} {_schema.describe(value)} is an ordinary tensor on "
                f"{value.device} but others are torchax's; move it with .to('jax')",
            )
        return value


def _replace(tensor: Tensor | View, new: jax.Array) -> None:
    """Gives a tensor its new value; what a view shows changes in the tensor behind it too."""
    if isinstance(tensor, View):
        tensor.update(new)
    else:
        tensor.apply_jax_(lambda _: new)
