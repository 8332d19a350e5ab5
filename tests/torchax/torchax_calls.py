"""torchax tensors of a case's arguments and other arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
import xla_gpu.torchax  # noqa: F401
from torchax import interop

ops = torch.ops.xla_gpu


def tensors(args: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """torchax tensors of NumPy arrays, ml_dtypes' included."""
    return {name: interop.torch_view(jnp.asarray(array)) for name, array in args.items()}


def zeros(*shape: int, dtype: Any = jnp.float32) -> torch.Tensor:
    """A torchax tensor of zeros."""
    return interop.torch_view(jnp.zeros(shape, dtype))


def ones(*shape: int) -> torch.Tensor:
    """A torchax tensor of f32 ones."""
    return interop.torch_view(jnp.ones(shape, jnp.float32))


def i32(*values: int) -> torch.Tensor:
    """A torchax tensor of these i32 values."""
    return interop.torch_view(jnp.array(values, jnp.int32))


def to_numpy(results: Any) -> Any:
    """A tensor's NumPy array; of a tuple or list, each's."""
    if isinstance(results, tuple | list):
        return [to_numpy(result) for result in results]
    return None if results is None else np.asarray(results.jax())
