"""Ragged paged attention in plain jax.numpy, and none at all: what ours is compared with.

Both have the signatures of the kernels they stand for. The plain form gathers every page of every
token's sequence. `plugin` makes vLLM use them, where tests/vllm/server.py is told so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_TOKENS_AT_ONCE = 128  # bounds the gathered pages: [tokens, longest sequence, kv_heads, head_dim]


def ragged_paged_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
    *,
    use_causal_mask: bool = True,
    update_kv_cache: bool = True,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    **tuning: Any,
) -> tuple[jax.Array, jax.Array]:
    """tpu-inference's v3: K and V of a head beside each other on the cache's head axes.

    Args:
      queries: [tokens, q_heads, head_dim]; `keys` and `values` [tokens, kv_heads, head_dim].
      kv_cache: [pages, page_size, heads / packing, packing, head_dim], heads = 2 * kv_heads.
      kv_lens: i32[max_seqs], the new tokens included.
      page_indices: i32[max_seqs * pages_per_seq].
      cu_q_lens: i32[max_seqs + 1], the first token of each sequence.
      distribution: i32[3], of which the last is the number of sequences.
      tuning: what only says how the TPU kernel is to be run.

    Returns:
      The attention's output, and the cache with the new keys and values.
    """
    del tuning
    head_dim, kv_heads = kv_cache.shape[-1], keys.shape[1]
    new = jnp.stack([keys, values], axis=2).reshape(keys.shape[0], 2 * kv_heads, keys.shape[2])
    places = _Places(kv_cache, kv_lens, page_indices, cu_q_lens, distribution)
    if update_kv_cache:
        kv_cache = places.write(kv_cache, new)

    def key_and_value(pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        pairs = pages[..., : 2 * kv_heads, :].reshape(*pages.shape[:-2], kv_heads, 2, head_dim)
        return pairs[..., 0, :], pairs[..., 1, :]

    scales = (sm_scale, q_scale, k_scale, v_scale)
    out = places.attend(
        queries, kv_cache, key_and_value, scales, use_causal_mask, sliding_window, soft_cap, None
    )
    return out, kv_cache


def ragged_paged_attention_hd64(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
    attention_sink: jax.Array | None = None,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    **tuning: Any,
) -> tuple[jax.Array, jax.Array]:
    """tpu-inference's form for head_dim 64: K and V side by side in the cache's last axis.

    Args:
      attention_sink: f32[q_heads], a logit per head that only the softmax's sum sees.

    The others are those of `ragged_paged_attention`; kv_cache is
    [pages, page_size, kv_heads / packing, packing, 128].
    """
    del tuning
    kv_heads = keys.shape[1]
    places = _Places(kv_cache, kv_lens, page_indices, cu_q_lens, distribution)
    kv_cache = places.write(kv_cache, jnp.concatenate([keys, values], axis=-1))

    def key_and_value(pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        return pages[..., :kv_heads, :64], pages[..., :kv_heads, 64:]

    scales = (sm_scale, q_scale, k_scale, v_scale)
    out = places.attend(
        queries, kv_cache, key_and_value, scales, True, sliding_window, soft_cap, attention_sink
    )
    return out, kv_cache


def no_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, kv_cache: jax.Array, *_: Any, **__: Any
) -> tuple[jax.Array, jax.Array]:
    """The sum of query, key and value, and the cache as it came: a step's cost without attention.

    XLA would drop the projections that make them if nothing read them.
    """
    new = jnp.repeat(keys + values, queries.shape[1] // keys.shape[1], axis=1)
    return queries + new.astype(queries.dtype), kv_cache


def take(v3: Callable, hd64: Callable) -> None:
    """Puts these in the place of tpu-inference's kernels, or of ours, in this process."""
    from tpu_inference.layers.common import attention_interface
    from xla_gpu.vllm_xla import _names

    for name, kernel in (("ragged_paged_attention", v3), ("ragged_paged_attention_hd64", hd64)):
        replacement = functools.partial(kernel)
        setattr(replacement, _names._MARK, True)
        setattr(attention_interface, name, replacement)


def zeroed(kernel: Callable) -> Callable:
    """The kernel with its output zeroed."""

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> tuple[jax.Array, jax.Array]:
        out, kv_cache = kernel(*args, **kwargs)
        return out * 0, kv_cache

    return call


class Zeroing:
    """An extension of vLLM's worker: attention that can be made to return zeros while it serves."""

    def zero_attention(self) -> None:
        """From now on ours writes the cache and returns zeros; every step is compiled anew."""
        from xla_gpu.vllm_xla import _attention

        take(
            zeroed(_attention.ragged_paged_attention),
            zeroed(_attention.ragged_paged_attention_hd64),
        )
        jax.clear_caches()


def plugin() -> None:
    """Entry point of vllm.general_plugins: the attention that OTHER_ATTENTION names."""
    from vllm.platforms import current_platform

    assert current_platform.is_tpu()  # asked first: the platform prepares tpu_inference's import
    kernels = {
        "jnp": (ragged_paged_attention, ragged_paged_attention_hd64),
        "none": (no_attention, no_attention),
    }
    take(*kernels[os.environ["OTHER_ATTENTION"]])


class _Places:
    """Where each token of a batch stands: its sequence, its position, its row in the cache."""

    def __init__(
        self,
        kv_cache: jax.Array,
        kv_lens: jax.Array,
        page_indices: jax.Array,
        cu_q_lens: jax.Array,
        distribution: jax.Array,
    ):
        self.page_size = kv_cache.shape[1]
        self.tables = page_indices.reshape(kv_lens.shape[0], -1)
        self.kv_lens, self.cu_q_lens, self.num_seqs = kv_lens, cu_q_lens, distribution[-1]

    def of(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The sequence and position of each token number, and whether it is no padding."""
        last = self.kv_lens.shape[0]
        # Entries of cu_q_lens past the last sequence mean nothing.
        ends = jnp.where(jnp.arange(last) < self.num_seqs, self.cu_q_lens[1:], 2**30)
        sequence = jnp.searchsorted(ends, tokens, side="right")
        valid = sequence < self.num_seqs
        sequence = jnp.minimum(sequence, last - 1)
        behind = self.cu_q_lens[sequence + 1] - tokens
        return sequence, self.kv_lens[sequence] - behind, valid

    def write(self, kv_cache: jax.Array, new: jax.Array) -> jax.Array:
        """The cache with `new` [tokens, heads, width] at the tokens' rows."""
        sequence, position, valid = self.of(jnp.arange(new.shape[0]))
        page = self.tables[sequence, jnp.maximum(position, 0) // self.page_size]
        # Out of range is not written: of no sequence, or before its first token.
        page = jnp.where(valid & (position >= 0), page, kv_cache.shape[0])
        heads = kv_cache.shape[2] * kv_cache.shape[3]
        padding = (heads - new.shape[1], kv_cache.shape[4] - new.shape[2])
        new = jnp.pad(new, ((0, 0), (0, padding[0]), (0, padding[1])))
        rows = new.reshape(new.shape[0], *kv_cache.shape[2:]).astype(kv_cache.dtype)
        return kv_cache.at[page, position % self.page_size].set(rows, mode="drop")

    def attend(
        self, queries, kv_cache, key_and_value, scales, causal, sliding_window, soft_cap, sink
    ) -> jax.Array:
        """Attention of every token over its sequence's pages, some tokens at a time."""
        tokens, q_heads, head_dim = queries.shape
        flat = kv_cache.reshape(*kv_cache.shape[:2], -1, kv_cache.shape[4])
        sm_scale, q_scale, k_scale, v_scale = scales

        def some(numbers_and_queries):
            numbers, q = numbers_and_queries
            sequence, position, valid = self.of(numbers)
            pages = flat[self.tables[sequence]]  # [n, pages_per_seq, page_size, heads, width]
            k, v = key_and_value(pages.reshape(numbers.shape[0], -1, *pages.shape[3:]))
            kv_heads = k.shape[2]
            q = q.reshape(-1, kv_heads, q_heads // kv_heads, head_dim)
            if q_scale is not None:
                limit = float(jnp.finfo(k.dtype).max)
                q = jnp.clip(q / q_scale, -limit, limit).astype(k.dtype)
            compute = queries.dtype
            k, v = k[..., :head_dim].astype(compute), v[..., :head_dim].astype(compute)
            logits = jnp.einsum(
                "nkgd,nlkd->nkgl", q.astype(compute), k, preferred_element_type=jnp.float32
            )
            logits *= sm_scale * (q_scale or 1.0) * (k_scale or 1.0)
            if soft_cap is not None:
                logits = soft_cap * jnp.tanh(logits / soft_cap)
            at = jnp.arange(k.shape[1])[None]
            length = self.kv_lens[sequence][:, None]
            seen = (at < length) & valid[:, None]
            if causal:
                seen &= at <= position[:, None]
                if sliding_window is not None:
                    seen &= position[:, None] - at < sliding_window
            seen = seen[:, None, None]
            logits = jnp.where(seen, logits, -1e30)
            top = jnp.max(logits, axis=-1, keepdims=True)
            if sink is not None:
                sink_logit = sink.reshape(1, kv_heads, -1, 1)
                top = jnp.maximum(top, sink_logit)
            weights = jnp.where(seen, jnp.exp(logits - top), 0)
            total = jnp.sum(weights, axis=-1, keepdims=True)
            if sink is not None:
                total += jnp.exp(sink_logit - top)
            # What lies past a sequence's end may be NaN.
            v = jnp.where(seen[:, 0, 0, :, None, None], v, 0)
            weights = (weights / jnp.maximum(total, 1e-30)).astype(compute)
            out = jnp.einsum("nkgl,nlkd->nkgd", weights, v, preferred_element_type=jnp.float32) * (
                v_scale or 1.0
            )
            return out.reshape(-1, q_heads, head_dim).astype(queries.dtype)

        numbers = jnp.arange(tokens)
        if tokens <= _TOKENS_AT_ONCE or tokens % _TOKENS_AT_ONCE:
            return some((numbers, queries))
        blocks = (
            numbers.reshape(-1, _TOKENS_AT_ONCE),
            queries.reshape(-1, _TOKENS_AT_ONCE, q_heads, head_dim),
        )
        return jax.lax.map(some, blocks).reshape(queries.shape)
