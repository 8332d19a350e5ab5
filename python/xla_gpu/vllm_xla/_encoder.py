"""Attention of encoders, such as the towers that see images: every token sees its own segment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_LOGITS = 1 << 27  # at most so many at once: 512 MiB in float32


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None = None,
    segment_ids: Any = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
    block_sizes: Any = None,
    vmem_limit_bytes: int | None = None,
    debug: bool = False,
) -> jax.Array:
    """tpu-inference's flash_attention, a TPU kernel, by jax.nn.dot_product_attention.

    Args:
      q: [batch, heads, tokens, head_dim].
      k: [batch, kv heads, keys, head_dim].
      v: as k.
      ab: added to the logits, [batch, heads, tokens, keys].
      segment_ids: its q [batch, tokens] and kv [batch, keys]; tokens see keys of equal numbers.
      causal: token i sees the keys up to i.
      sm_scale: of the logits.
      block_sizes: the kernel's; not needed.
      vmem_limit_bytes: the kernel's; not needed.
      debug: the kernel's; not needed.

    Returns:
      As q.
    """
    batch, heads, tokens, _ = q.shape
    keys = k.shape[2]
    # Queries in parts, so that the logits of a large image fit.
    parts = 1
    while batch * heads * tokens * keys // parts > _LOGITS and tokens % (2 * parts) == 0:
        parts *= 2
    size = tokens // parts
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)

    def attend(part: jax.Array) -> jax.Array:
        def own(array: jax.Array, axis: int) -> jax.Array:
            return lax.dynamic_slice_in_dim(array, part * size, size, axis)

        mask = jnp.ones((1, 1, size, keys), bool)
        if segment_ids is not None:
            mask = own(segment_ids.q, 1)[:, None, :, None] == segment_ids.kv[:, None, None, :]
        if causal:
            mask &= (part * size + jnp.arange(size))[:, None] >= jnp.arange(keys)
        bias = None if ab is None else own(ab, 2)
        query = own(q, 2).swapaxes(1, 2)
        return jax.nn.dot_product_attention(query, k, v, bias, mask, scale=sm_scale)

    out: jax.Array = lax.map(attend, jnp.arange(parts))  # [parts, batch, size, heads, head_dim]
    return out.transpose(1, 3, 0, 2, 4).reshape(q.shape)


__all__ = ["flash_attention"]
