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

from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu.jax import _kernels as _jax_kernels
from xla_gpu.jax import _primitive
from xla_gpu.torch import _kernels, _registration, _schema

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
    for name, torch_op in _registration.OPS.items():
        op = _Op(torch_op.inputs)
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
      inputs: binds its arguments.
    """

    inputs: Callable[..., _kernels.Inputs]

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

    @at_callers_line
    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Arrays out of the tensors, the call in JAX, and tensors of its results."""
        kernel, tensors, options = self.inputs(*args, **kwargs)
        kernel.check_present(tensors)
        kernel.check_written(tensors)
        given = dict(zip(kernel.names, tensors))
        arrays = [_to_jax(kernel, name, tensor) for name, tensor in given.items()]
        op, attrs = kernel.attributes(tensors, options)

        def call(*arrays: jax.Array) -> list[jax.Array]:
            return _primitive.call(op, dict(zip(kernel.names, arrays)), attrs)

        if kernel.gradients is not None:
            call = _differentiable(kernel, options, call)
        results = call(*arrays)
        for result, new in zip(kernel.results, results, strict=True):
            if kernel.form.in_place and result.alias_of:
                _replace(given[result.alias_of], new)
        return kernel.pick(interop.torch_view(list(results)))


def _differentiable(
    kernel: _kernels.Kernel, options: Any, call: Callable[..., list[jax.Array]]
) -> Callable[..., list[jax.Array]]:
    """`call` with the kernel's gradient for JAX's reverse mode; torch's has it already."""
    function = jax.custom_vjp(call)

    def forward(*arrays: jax.Array) -> tuple[list[jax.Array], Any]:
        results = call(*arrays)
        return results, (arrays, tuple(results))

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        assert kernel.gradients is not None
        arrays, results = kept
        made = kernel.gradients(options, *interop.torch_view((arrays, results, tuple(cotangents))))
        gradients = interop.jax_view(tuple(made))
        return tuple(
            _jax_kernels.gradient(a, g, f"{kernel.name}: gradient of argument {i}")
            for i, (a, g) in enumerate(zip(arrays, gradients, strict=True))
        )

    function.defvjp(forward, backward)
    return function


def _to_jax(kernel: _kernels.Kernel, name: str, tensor: torch.Tensor) -> jax.Array:
    if isinstance(tensor, _TORCHAX):
        array: jax.Array = tensor.jax()
        return array
    raise InvalidArgumentError(
        f"{kernel.name}: {name} {_schema.describe(tensor)} is an ordinary tensor on "
        f"{tensor.device} but others are torchax's; move it with .to('jax')"
    )


def _replace(tensor: Tensor | View, new: jax.Array) -> None:
    """Gives a tensor its new value; what a view shows changes in the tensor behind it too."""
    if isinstance(tensor, View):
        tensor.update(new)
    else:
        tensor.apply_jax_(lambda _: new)
