"""A kernel's call while Dynamo traces; imported then, since it imports Dynamo.

Dynamo does not look into it but puts it into its graph as it is. What compiles the graph runs it on
fake tensors, as Python: functions of arguments see symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xla_gpu import _kernel
from xla_gpu.torch import _functions, _user_kernels


def _call(number: int, arrays: Any, scalars: Any) -> list[torch.Tensor]:
    """The results of the kernel of this number that are no arguments."""
    kernel = _kernel.kernels[number]
    run, tensors = _user_kernels.bind(kernel, arrays)
    made = _functions.dispatch_kernel(run, tensors, scalars)
    return [made] if isinstance(made, torch.Tensor) else list(made or ())


call: Callable[..., list[torch.Tensor]] = torch.compiler.allow_in_graph(_call)
