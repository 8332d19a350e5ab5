"""paged_attention, ragged_paged_attention and update_kv_cache for JAX."""

from __future__ import annotations

import numbers
from typing import Any

import jax
import numpy as np

from xla_gpu._errors import make_error
from xla_gpu.jax._functions import array, invoke

# An array; or a Python number, which becomes a compile-time constant.
Scalar = float | jax.Array | np.ndarray
KvCache = jax.Array | tuple[jax.Array, jax.Array]


def _split_cache(op: str, kv_cache: Any) -> tuple[Any, Any]:
    """The arguments kv_cache and v_cache of an array or a (K, V) pair."""
    if not isinstance(kv_cache, tuple | list):
        return kv_cache, None
    if len(kv_cache) != 2:
        raise make_error(
            3,
            f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
            "array or a pair (K, V)",
        )
    key_cache, value_cache = (array(op, f"kv_cache[{i}]", one) for i, one in enumerate(kv_cache))
    return key_cache, value_cache


def paged_attention(
    query: jax.Array,
    kv_cache: KvCache,
    context_lens: jax.Array,
    block_tables: jax.Array,
    query_start_loc: jax.Array,
    num_seqs: jax.Array | int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    sinks: Scalar | None = None,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
    causal: bool = True,
    return_lse: bool = False,
    out_dtype: Any = None,
    batch_invariant: bool | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of a ragged batch over a paged KV cache: prefill, decode or both in one call.

    Query i of a sequence stands at pos = context_len - query_len + i and sees keys k <= pos; with a
    window only those with pos - k < sliding_window. Rows that belong to no sequence are 0,
    and so are rows that see no key, as before the first token where context_len < query_len. A
    sequence with an index that cannot be meant (a negative length, a page outside the cache, ...)
    gives NaN rows, the others are untouched. Softmax and sums are in f32 or better.

    Args:
      query: bf16, f16 or f32 [tokens, q_heads, head_dim], all sequences one after the other.
      kv_cache: [pages, page_size, 2 * kv_heads, head_dim] with K on even heads and V on odd; or a
        pair (K, V) of [pages, page_size, kv_heads, head_dim]; or [2, pages, page_size, kv_heads,
        head_dim]. bf16, f16, f32, float8_e4m3fn or float8_e5m2. q_heads is a multiple of kv_heads.
      context_lens: i32 [max_seqs], tokens in the cache, the new ones included.
      block_tables: i32 [max_seqs, max_pages], page numbers.
      query_start_loc: i32 [max_seqs + 1], first query row of each sequence.
      num_seqs: i32 [1], sequences in use (the rest is padding); or a Python int.
      scale: factor of the logits, e.g. head_dim ** -0.5; -1e20 to 1e20.
      sliding_window: keys that a query sees, itself included; None for all.
      soft_cap: logits become soft_cap * tanh(logits / soft_cap), 1e-20 to 1e20; None for none.
      sinks: f32 [q_heads], one more logit a head in the softmax's denominator.
      k_scale: f32 [1] or [kv_heads], factor of the stored keys (fp8 caches).
      v_scale: as k_scale, of the stored values.
      causal: False lets every query see the whole context.
      return_lse: also return the log-sum-exp of each row's logits.
      out_dtype: float32, bfloat16 or float16; None for query's.
      batch_invariant: a sequence's bits do not depend on what else is in the batch; None for what
        the environment variable XLA_GPU_BATCH_INVARIANT says when the call is traced.

    Returns:
      out [tokens, q_heads, head_dim]; with return_lse, (out, lse) with lse f32 [tokens, q_heads]
      (natural log; where a row sees nothing the sink's logit, -inf without sinks).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    if sinks is not None and isinstance(sinks, numbers.Real):
        sinks = np.full(np.shape(query)[1:2], sinks, np.float32)
    cache, v_cache = _split_cache("paged_attention", kv_cache)
    sequences = (context_lens, block_tables, query_start_loc, num_seqs)
    args = (query, cache, *sequences, v_cache, sinks, k_scale, v_scale)
    attrs = (scale, sliding_window, soft_cap, causal, return_lse, out_dtype, batch_invariant)
    return invoke("paged_attention", args, attrs)


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> jax.Array:
    """The TPU kernel's signature (jax.experimental.pallas.ops.tpu.ragged_paged_attention, v2).

    Code written for TPUs runs unchanged: this is paged_attention with the interleaved cache. The
    TPU's block sizes, vmem_limit_bytes and mask_value (masked logits are left out exactly) are
    accepted and have no effect.

    Args:
      q: [max_num_batched_tokens, num_q_heads, head_dim].
      kv_pages: [total_num_pages, page_size, 2 * num_kv_heads, head_dim], K on even heads.
      kv_lens: i32 [max_num_seqs].
      page_indices: i32 [max_num_seqs, pages_per_seq].
      cu_q_lens: i32 [max_num_seqs + 1].
      num_seqs: i32 [1].
      sm_scale: as paged_attention's scale.
      sliding_window: as paged_attention's.
      soft_cap: as paged_attention's.
      mask_value: no effect.
      k_scale: as paged_attention's.
      v_scale: as paged_attention's.
      num_kv_pages_per_block: no effect.
      num_queries_per_block: no effect.
      vmem_limit_bytes: no effect.

    Returns:
      The attention's output, shape and dtype of q.

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    del mask_value, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes
    if isinstance(kv_pages, tuple | list) or getattr(kv_pages, "ndim", 4) != 4:
        raise make_error(
            3,
            "ragged_paged_attention: kv_pages must be one array [pages, page_size, 2 * kv_heads, "
            "head_dim]; paged_attention takes the other layouts",
        )
    return paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale,
        sliding_window,
        soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def update_kv_cache(
    key: jax.Array,
    value: jax.Array,
    kv_cache: KvCache,
    slot_mapping: jax.Array,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> KvCache:
    """Writes the keys and values of new tokens into their slots of a paged cache.

    In place where the cache is donated (jax.jit(..., donate_argnums=...)) or is a temporary of the
    program, else on a copy, as JAX's functional rules ask.

    Args:
      key: f32, bf16 or f16 [tokens, kv_heads, head_dim].
      value: as key.
      kv_cache: any layout of paged_attention's; its dtype may differ from key's.
      slot_mapping: i32 or i64 [tokens], page * page_size + offset in the page. A negative slot or
        one past the last is skipped: nothing is written.
      k_scale: f32 [1] or [kv_heads]: fp8 caches store key / k_scale, saturated.
      v_scale: as k_scale, of the values.

    Returns:
      The updated cache: an array, or a pair where a pair came.

    Raises:
      ValueError: for wrong shapes or dtypes, while the call is traced.
    """
    cache, v_cache = _split_cache("update_kv_cache", kv_cache)
    args = (key, value, cache, slot_mapping, v_cache, k_scale, v_scale)
    return invoke("update_kv_cache", args, ())
