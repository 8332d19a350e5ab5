"""The product of rows with the weights of their groups: what mixtures of experts are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import xla_gpu.jax
from xla_gpu.vllm_xla._names import UnsupportedError, silu_and_mul_with_clamp, swigluoai

_ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "silu": lambda gate, up: jax.nn.silu(gate) * up,
    "gelu": lambda gate, up: jax.nn.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: jax.nn.gelu(gate, approximate=True) * up,
    "swigluoai": swigluoai,
    "silu_and_mul_with_clamp": silu_and_mul_with_clamp,
}

# These have a limit: while a layer is traced its own, and tokamax's for 0.
_LIMITED = ("swigluoai", "silu_and_mul_with_clamp")
swiglu_limit = jax.make_user_context(0.0)


def gmm_v2(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    rhs_scale: jax.Array | None = None,
    rhs_bias: jax.Array | None = None,
    group_offset: jax.Array | None = None,
    *,
    tile_info: Any = None,
    zero_initialize: bool = True,
    maybe_quantize_lhs: bool = True,
    fuse_act: str | None = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """lhs[rows of group i] @ rhs[i - group_offset], as tokamax's gmm_v2, a TPU kernel, has it.

    Args:
      lhs: [rows, K], sorted by group.
      rhs: [groups here, K, N], of the groups from group_offset on.
      group_sizes: the rows of each group, i32[all groups].
      rhs_scale: [groups here, blocks of K, 1, N], of quantized weights.
      rhs_bias: [groups here, 1, N].
      group_offset: the first group that is here, a scalar.
      tile_info: the kernel's; not needed.
      zero_initialize: the kernel's; rows of groups that are elsewhere mean nothing here.
      maybe_quantize_lhs: the kernel's; lhs is never quantized here.
      fuse_act: an activation of _ACTIVATIONS: the first half of the N columns are its gates.
      preferred_element_type: of the result; lhs's if None.

    Returns:
      [rows, N], or [rows, N / 2] with an activation.

    Raises:
      UnsupportedError: for another activation, by name.
    """
    if fuse_act is not None and fuse_act not in _ACTIVATIONS:
        raise UnsupportedError(
            f"xla_gpu.vllm_xla: the experts' activation is {fuse_act!r}; there are "
            f"{', '.join(_ACTIVATIONS)}"
        )
    start = jnp.int32(0)
    here = rhs.shape[0]
    elsewhere = here < group_sizes.shape[0]
    if elsewhere:  # the rows of the groups here come first
        assert group_offset is not None
        first = group_offset.reshape(())
        start = jnp.sum(jnp.where(jnp.arange(group_sizes.shape[0]) < first, group_sizes, 0))
        group_sizes = lax.dynamic_slice_in_dim(group_sizes, first, here)
        lhs_rows = jnp.roll(lhs, -start, 0)
    else:
        lhs_rows = lhs
    if rhs.dtype.name == "float4_e2m1fn":  # whose values float8_e4m3fn has
        rhs = rhs.astype(jnp.float8_e4m3fn)
    elif rhs.dtype.itemsize > 1:
        rhs = rhs.astype(lhs.dtype)
    scale = None if rhs_scale is None else rhs_scale.astype(jnp.float32)[:, :, 0]
    out = xla_gpu.jax.grouped_matmul(
        lhs_rows, rhs, group_sizes, rhs_scale=scale, out_dtype="float32"
    )
    if rhs_bias is not None:
        rows = jnp.arange(lhs.shape[0])
        group = jnp.searchsorted(jnp.cumsum(group_sizes), rows, side="right", method="compare_all")
        out += rhs_bias[jnp.minimum(group, here - 1), 0]
    if fuse_act is not None:
        limit = {"limit": swiglu_limit.value} if fuse_act in _LIMITED and swiglu_limit.value else {}
        out = _ACTIVATIONS[fuse_act](*jnp.split(out, 2, axis=-1), **limit)
    out = out.astype(preferred_element_type or lhs.dtype)
    return jnp.roll(out, start, 0) if elsewhere else out
