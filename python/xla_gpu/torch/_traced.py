"""A kernel's call while Dynamo traces; imported then, since it imports Dynamo.

Dynamo does not look into it but puts it into its graph as it is. What compiles the graph runs it on
fake tensors, as Python: functions of arguments see symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xla_gpu import _kernel, _triton
from xla_gpu.torch import _functions, _user_kernels


def _call(number: int, arrays: Any, scalars: Any) -> list[torch.Tensor]:
    """The results of the kernel of this number that are no arguments."""
    run, tensors = _user_kernels.bind(_kernel.kernels[number], arrays)
    made = _functions.dispatch_kernel(run, tensors, scalars)
    return [made] if isinstance(made, torch.Tensor) else list(made or ())


def _number(value: Any) -> Any:
    """Of a number that torch traces as any, its value: code is made for it; torch traces anew."""
    kinds = ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool))
    return next((exact(value) for kind, exact in kinds if isinstance(value, kind)), value)


def _call_triton(number: int, args: Any, named: Any) -> list[torch.Tensor]:
    """As `_call`, of the Triton kernel of this number, which chooses the kernel by what came."""
    args = tuple(map(_number, args))
    named = {name: _number(value) for name, value in named.items()}
    kernel, arrays, scalars = _triton.kernels[number].choose(args, named)
    return _call(kernel.number, *kernel._bound(*arrays, **scalars))


call: Callable[..., list[torch.Tensor]] = torch.compiler.allow_in_graph(_call)
call_triton: Callable[..., list[torch.Tensor]] = torch.compiler.allow_in_graph(_call_triton)
