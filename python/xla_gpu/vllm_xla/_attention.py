"""Our kernels under the names and with the arguments of tpu-inference's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xla_gpu.jax import ragged_paged_attention_hd64, ragged_paged_attention_v3


def _of_this_step(x: jax.Array) -> jax.Array:
    """A copy of lengths, pages or counts, in which a wrong negative number may be -1.

    vLLM brings them in new tensors for each step. XLA records each command that reads a tensor that
    has moved into its CUDA graph anew, and a custom call takes longest of all. The copy, made once
    for all layers, lies in the program's own memory; a plain copy would be optimized away.
    """
    return jnp.maximum(x, -1)


def _with_copies(attention: Callable) -> Callable:
    @functools.wraps(attention)
    def attend(
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        kv_cache: jax.Array,
        kv_lens: jax.Array,
        page_indices: jax.Array,
        cu_q_lens: jax.Array,
        distribution: jax.Array,
        *others: Any,
        **named: Any,
    ) -> tuple[jax.Array, jax.Array]:
        small = map(_of_this_step, (kv_lens, page_indices, cu_q_lens, distribution))
        return attention(queries, keys, values, kv_cache, *small, *others, **named)

    return attend


ragged_paged_attention = _with_copies(ragged_paged_attention_v3)
ragged_paged_attention_hd64 = _with_copies(ragged_paged_attention_hd64)

__all__ = ["ragged_paged_attention", "ragged_paged_attention_hd64"]
