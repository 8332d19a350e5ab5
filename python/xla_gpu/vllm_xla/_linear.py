"""The product of rows with a dense layer's quantized weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xla_gpu.vllm_xla._names import replace
from xla_gpu.vllm_xla._weights import _FP8

# Up to here a product takes as long as its weights are read, whatever it computes in. Of 64 rows on
# an H100 the conversion costs more than the kernels that fall away.
FEW_ROWS = 16


def _of_few_rows_exact(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def product(x: Any, w_q: Any, w_scale: Any, quantize_activation: bool = True) -> jax.Array:
        few = len(x) <= FEW_ROWS and x.dtype.itemsize == 2
        if not few or w_q.dtype not in _FP8 or w_scale.ndim > 1:
            out: jax.Array = original(x, w_q, w_scale, quantize_activation)
        else:
            # XLA puts the operand that it converts on the left, where it may stay in registers, but
            # not if the rows too are computed within the product, as a norm's last step would be.
            x = lax.optimization_barrier(x)
            out = lax.dot(x, w_q.astype(x.dtype), preferred_element_type=jnp.float32)
            out = (out * w_scale).astype(x.dtype)
        return out

    return product


def few_rows_are_not_quantized() -> None:
    """Before a product with fp8 weights rows become fp8 too, each with a scale of its own.

    On GPUs that is some five kernels a layer more, and a product that is less exact. Weights become
    the rows' type on their way to the tensor cores: what is read of them stays a byte each.
    """
    replace("linear.xla_quantized_matmul", _of_few_rows_exact)
