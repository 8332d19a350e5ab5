"""The product of rows with a dense layer's fp8 weights, one scale a channel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torchax.interop import jax_view, torch_view

from xla_gpu.jax import quantize_rows
from xla_gpu.vllm_xla._names import replace

# The attribute of a tensor that RMSNorm made: its array, which nothing has written to as long as it
# is that, and the arguments of quantize_rows that do the same.
_NORM = "_xla_gpu_norm"


def _is_ours(w_q: Any, w_scale: Any, quantize_activation: bool = True) -> bool:
    has_channels = w_scale is not None and w_scale.ndim <= 1
    return quantize_activation and has_channels and bool(w_q.dtype == jnp.float8_e4m3fn)


def _product(w_q: Any, w_scale: Any, x: Any, **norm: Any) -> jax.Array:
    rows, row_scale = quantize_rows(x, **norm)
    sums = lax.dot(rows, w_q, preferred_element_type=jnp.float32)
    out: jax.Array = (sums * row_scale[:, None] * w_scale).astype(x.dtype)
    return out


def _of_rows_quantized_in_one_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def product(x: Any, w_q: Any, w_scale: Any, quantize_activation: bool = True) -> jax.Array:
        if _is_ours(w_q, w_scale, quantize_activation):
            return _product(w_q, w_scale, x)
        out: jax.Array = original(x, w_q, w_scale, quantize_activation)
        return out

    return product


def _that_says_of_what(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        out = original(self, x, residual)
        normed, of = (out, x) if residual is None else out
        if x.ndim == 2 and self.has_weight and self.variance_size_override is None:
            array, of, weight = map(jax_view, (normed, of, self.weight))
            norm = dict(x=of, norm_weight=weight, epsilon=self.variance_epsilon)
            setattr(normed, _NORM, (array, norm))
        return out

    return forward


def _of_normed_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        array, norm = getattr(x, _NORM, (None, {}))
        config, static = self.linear_config, getattr(self, "is_static_input_scheme", False)
        alone = config.mesh.size == 1 and config.fuse_matmuls and not static and bias is None
        if alone and jax_view(x) is array:
            weights = tuple(map(jax_view, (layer.weight, layer.weight_scale)))
            if _is_ours(*weights):
                with jax.named_scope(layer._get_name()):
                    return torch_view(_product(*weights, **norm))
        out: torch.Tensor = original(self, layer, x, bias)
        return out

    return apply


def rows_are_quantized_in_one_kernel() -> None:
    """Before a product with fp8 weights rows become fp8 too, each with a scale of its own.

    XLA makes two kernels of that, and two of the norm in front. On one device all four are one.
    """
    replace("linear.xla_quantized_matmul", _of_rows_quantized_in_one_kernel)
    replace("RMSNorm.forward_native", _that_says_of_what)
    replace("VllmFp8LinearMethod.apply", _of_normed_rows)
    replace("VllmCompressedTensorsW8A8Fp8.apply_weights", _of_normed_rows)
