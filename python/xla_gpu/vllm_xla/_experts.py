"""The product of rows with the weights of their groups: what mixtures of experts are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import tokamax
from jax import lax
from tokamax._src.ops.experimental.gmm_v2.gmm_v2 import silu_and_mul_with_clamp, swigluoai

_ACTIVATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "silu": lambda gate, up: jax.nn.silu(gate) * up,
    "gelu": lambda gate, up: jax.nn.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: jax.nn.gelu(gate, approximate=True) * up,
    "swigluoai": swigluoai,
    "silu_and_mul_with_clamp": silu_and_mul_with_clamp,
}


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
    """
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
    if jax.default_backend() == "gpu":
        # Mosaic's kernel, where it knows GPU, types and sizes (bfloat16, K a multiple of 64).
        weights = rhs if rhs_scale is None else jax.vmap(_floats, (0, 0, None))(rhs, rhs_scale, lhs)
        out = tokamax.ragged_dot(
            lhs_rows,
            weights,
            group_sizes,
            preferred_element_type=jnp.float32,
            implementation=("mosaic", _by_blocks),
        )
    else:
        out = _by_blocks(lhs_rows, rhs, group_sizes=group_sizes, scale=rhs_scale)
    if rhs_bias is not None:
        rows = jnp.arange(lhs.shape[0])
        group = jnp.searchsorted(jnp.cumsum(group_sizes), rows, side="right", method="compare_all")
        out += rhs_bias[jnp.minimum(group, here - 1), 0]
    if fuse_act is not None:
        out = _ACTIVATIONS[fuse_act](*jnp.split(out, 2, axis=-1))
    out = out.astype(preferred_element_type or lhs.dtype)
    return jnp.roll(out, start, 0) if elsewhere else out


def _floats(weights: jax.Array, scale: jax.Array, like: jax.Array) -> jax.Array:
    """An expert's quantized weights [K, N] times their scales [blocks of K, 1, N]."""
    blocks = weights.astype(jnp.float32).reshape(scale.shape[0], -1, weights.shape[1])
    return (blocks * scale).reshape(weights.shape).astype(like.dtype)


def _by_blocks(
    lhs: jax.Array, rhs: jax.Array, *, group_sizes: Any, scale: jax.Array | None = None, **_: Any
) -> jax.Array:
    """ragged_dot as a loop over blocks of rows of one group, in order.

    jax.lax.ragged_dot is no choice: XLA:CPU and XLA:GPU multiply all rows with all experts, after
    copying the rows once for each.
    """
    sizes, groups = jnp.asarray(group_sizes), rhs.shape[0]
    # The power of two from the mean group's rows on.
    rows = min(max(8, 1 << (-(-lhs.shape[0] // groups) - 1).bit_length()), 128)
    blocks = -(-sizes // rows)
    ends, done = jnp.cumsum(sizes), jnp.cumsum(blocks)
    lhs = jnp.pad(lhs, ((0, rows), (0, 0)))

    def step(block: jax.Array, out: jax.Array) -> jax.Array:
        # A block's rows that are beyond its group are written again by the next group's.
        group = jnp.searchsorted(done, block, side="right", method="compare_all")
        row = ends[group] - sizes[group] + (block - done[group] + blocks[group]) * rows
        some = lax.dynamic_slice_in_dim(lhs, row, rows)
        weights = lax.dynamic_index_in_dim(rhs, group, keepdims=False)
        if scale is not None:
            of_group = lax.dynamic_index_in_dim(scale, group, keepdims=False)
            weights = _floats(weights, of_group, lhs)
        product = jnp.dot(some, weights, preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(out, product, row, 0)

    zeros = jnp.zeros((lhs.shape[0], rhs.shape[2]), jnp.float32)
    out: jax.Array = lax.fori_loop(0, done[-1], step, zeros)
    return out[:-rows]
