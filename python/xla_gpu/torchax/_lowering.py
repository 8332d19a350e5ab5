"""torch.ops.xla_gpu.* in JAX: each function takes its op's arguments as JAX arrays.

An op that updates its arguments in place returns their new values here, in the schema's order.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

import xla_gpu.jax


def simple_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """torch.ops.xla_gpu.simple_add."""
    return xla_gpu.jax.simple_add(a, b)


def _attention(
    query: jax.Array,
    kv_cache: jax.Array,
    context_lens: jax.Array,
    block_tables: jax.Array,
    query_start_loc: jax.Array,
    num_seqs: jax.Array,
    *args: Any,
    v_cache: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> Any:
    return xla_gpu.jax.paged_attention(
        query,
        _cache(kv_cache, v_cache),
        context_lens,
        block_tables,
        query_start_loc,
        num_seqs.reshape(1) if num_seqs.ndim == 0 else num_seqs,
        *args,
        out_dtype=None if out_dtype is None else str(out_dtype).removeprefix("torch."),
        **kwargs,
    )


def paged_attention(*args: Any, **kwargs: Any) -> jax.Array:
    """torch.ops.xla_gpu.paged_attention."""
    return _attention(*args, **kwargs)


def paged_attention_with_lse(*args: Any, **kwargs: Any) -> tuple[jax.Array, jax.Array]:
    """torch.ops.xla_gpu.paged_attention_with_lse."""
    return _attention(*args, **kwargs, return_lse=True)


def update_kv_cache(
    key: jax.Array, value: jax.Array, kv_cache: jax.Array, slot_mapping: jax.Array, **kwargs: Any
) -> jax.Array:
    """torch.ops.xla_gpu.update_kv_cache."""
    return xla_gpu.jax.update_kv_cache(key, value, kv_cache, slot_mapping, **kwargs)


def update_kv_cache_pair(
    key: jax.Array,
    value: jax.Array,
    kv_cache: jax.Array,
    v_cache: jax.Array,
    slot_mapping: jax.Array,
    **kwargs: Any,
) -> tuple[jax.Array, jax.Array]:
    """torch.ops.xla_gpu.update_kv_cache_pair."""
    return xla_gpu.jax.update_kv_cache(key, value, (kv_cache, v_cache), slot_mapping, **kwargs)


def update_kv_cache_(
    key: jax.Array,
    value: jax.Array,
    kv_cache: jax.Array,
    slot_mapping: jax.Array,
    *,
    v_cache: jax.Array | None = None,
    **kwargs: Any,
) -> tuple[jax.Array, ...]:
    """torch.ops.xla_gpu.update_kv_cache_: the caches' new values."""
    updated = xla_gpu.jax.update_kv_cache(
        key, value, _cache(kv_cache, v_cache), slot_mapping, **kwargs
    )
    return updated if isinstance(updated, tuple) else (updated,)


def _cache(kv_cache: jax.Array, v_cache: jax.Array | None) -> Any:
    return kv_cache if v_cache is None else (kv_cache, v_cache)
