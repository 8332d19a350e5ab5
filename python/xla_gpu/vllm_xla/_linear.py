"""The product of rows with a dense layer's fp8 weights, one scale a channel."""

from __future__ import annotations

import dataclasses
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

# The attribute of a tensor that says how it was made: its array, which nothing has written to as
# long as it is that, and arguments of quantize_rows by which that makes it.
_MADE = "_xla_gpu_made"


def _say(tensor: torch.Tensor, **made: Any) -> None:
    setattr(tensor, _MADE, (jax_view(tensor), made))


def _made(tensor: torch.Tensor) -> dict[str, Any]:
    array, made = getattr(tensor, _MADE, (None, {}))
    return made if jax_view(tensor) is array else {}


def sums(tensor: torch.Tensor) -> dict[str, jax.Array]:
    """Of an fp8 product that is scaled for each row and column: x, row_factor and column_factor.

    Kernels that multiply these by themselves save XLA one. Empty of other tensors.
    """
    made = _made(tensor)
    return dict(made) if made.keys() == {"x", "row_factor", "column_factor"} else {}


def _is_ours(w_q: Any, w_scale: Any, quantize_activation: bool = True) -> bool:
    has_channels = w_scale is not None and w_scale.ndim <= 1
    return quantize_activation and has_channels and bool(w_q.dtype == jnp.float8_e4m3fn)


@dataclasses.dataclass
class _Sum:
    """A tensor's array, and what it is the sum of, in arguments of quantize_rows.

    The first to quantize it makes it by these, for the tensor too, so that XLA need not.
    """

    tensor: torch.Tensor
    array: jax.Array
    terms: dict[str, jax.Array]

    def quantized(self, **norm: Any) -> tuple[jax.Array, jax.Array]:
        if jax_view(self.tensor) is not self.array:  # somebody did, or wrote to it
            rows, scale = quantize_rows(self.array, **norm)
        else:
            rows, scale, total = quantize_rows(**self.terms, **norm)
            self.tensor._elem = total
        return rows, scale


def _sums_of(w_q: Any, x: Any, **computed: Any) -> dict[str, jax.Array]:
    is_sum = isinstance(x, _Sum)
    rows, row_scale = x.quantized(**computed) if is_sum else quantize_rows(x, **computed)
    return dict(x=lax.dot(rows, w_q, preferred_element_type=jnp.float32), row_factor=row_scale)


def _product(w_scale: Any, dtype: Any, x: jax.Array, row_factor: jax.Array) -> jax.Array:
    out: jax.Array = (x * row_factor[:, None] * w_scale).astype(dtype)
    return out


def _of_rows_quantized_in_one_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def product(x: Any, w_q: Any, w_scale: Any, quantize_activation: bool = True) -> jax.Array:
        if _is_ours(w_q, w_scale, quantize_activation):
            return _product(w_scale, x.dtype, **_sums_of(w_q, x))
        out: jax.Array = original(x, w_q, w_scale, quantize_activation)
        return out

    return product


def _norm_that_says_how(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        terms = sums(x) if residual is not None else {}
        if terms:
            terms["residual"] = jax_view(residual)
        out = original(self, x, residual)
        normed, of = (out, x) if residual is None else out
        if x.ndim == 2 and self.has_weight and self.variance_size_override is None:
            rows = jax_view(of)
            made: Any = _Sum(of, rows, terms) if terms else rows
            _say(normed, x=made, norm_weight=jax_view(self.weight), epsilon=self.variance_epsilon)
        return out

    return forward


def _activation_that_says_how(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(*args: Any) -> torch.Tensor:
        x = args[-1]  # of a static method, which is a method now
        out: torch.Tensor = original(x)
        if x.ndim == 2:
            _say(out, **(sums(x) or {"x": jax_view(x)}), activation="silu_mul")
        return out

    return forward


def _of_rows_that_say_how(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        config, static = self.linear_config, getattr(self, "is_static_input_scheme", False)
        alone = config.mesh.size == 1 and config.fuse_matmuls and not static and bias is None
        if alone and x.ndim == 2:
            made = _made(x) or {"x": jax_view(x)}
            w_q, w_scale = map(jax_view, (layer.weight, layer.weight_scale))
            if _is_ours(w_q, w_scale):
                with jax.named_scope(layer._get_name()):
                    summed = _sums_of(w_q, **made)
                    out = torch_view(_product(w_scale, jax_view(x).dtype, **summed))
                if w_scale.ndim == 1 and w_scale.dtype == jnp.float32:
                    _say(out, **summed, column_factor=w_scale)
                return out
        product: torch.Tensor = original(self, layer, x, bias)
        return product

    return apply


def compiler_options(weights: Any, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Of a program of products with these weights.

    By default XLA cuts a product of few columns in parts along K, and adds them up in a kernel that
    does what is ours to do, or in one more.
    """
    matrices = (w for w in jax.tree.leaves(weights) if w.ndim == 2)
    ours = mesh.size == 1 and any(w.dtype == jnp.float8_e4m3fn for w in matrices)
    return {"xla_gpu_experimental_force_split_k": 1} if ours else {}


def rows_are_quantized_in_one_kernel() -> None:
    """Before a product with fp8 weights rows become fp8 too, each with a scale of its own.

    XLA makes two kernels of that, and one or two of the norm or the activation in front. On one
    device all of them are one, into which products in front bring their scales, and a norm the sum
    with the residual.
    """
    replace("linear.xla_quantized_matmul", _of_rows_quantized_in_one_kernel)
    replace("RMSNorm.forward_native", _norm_that_says_how)
    replace("SiluAndMul.forward_native", _activation_that_says_how)
    replace("VllmFp8LinearMethod.apply", _of_rows_that_say_how)
    replace("VllmCompressedTensorsW8A8Fp8.apply_weights", _of_rows_that_say_how)
