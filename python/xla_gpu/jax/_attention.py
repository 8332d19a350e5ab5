"""paged_attention, ragged_paged_attention and update_kv_cache for JAX."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from xla_gpu import _docs, _ops, _schema
from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu.jax._functions import array, invoke, known_types

if TYPE_CHECKING:
    from xla_gpu._signatures import PagedAttention

    _PagedAttention: TypeAlias = PagedAttention[ArrayLike, ArrayLike, DTypeLike, jax.Array]

# A Python number becomes a compile-time constant.
KvCache: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike]

_contract: Callable[[_PagedAttention], _PagedAttention] = _docs.contract(_docs.PAGED_ATTENTION)
_Cache = TypeVar("_Cache", jax.Array, tuple[jax.Array, jax.Array])


def _split_cache(op: str, kv_cache: Any) -> tuple[Any, Any]:
    """The arguments kv_cache and v_cache of an array or a (K, V) pair."""
    if not isinstance(kv_cache, tuple | list):
        return kv_cache, None
    if len(kv_cache) != 2:
        raise InvalidArgumentError(
            f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
            "array or a pair (K, V)"
        )
    key_cache, value_cache = (array(op, f"kv_cache[{i}]", one) for i, one in enumerate(kv_cache))
    return key_cache, value_cache


def _count(num_seqs: Any, context_lens: Any) -> Any:
    """num_seqs as an array, of what may be a Python int or None."""
    if num_seqs is not None and (
        type(num_seqs) in known_types or not isinstance(num_seqs, numbers.Integral)
    ):
        return num_seqs
    shape = array("paged_attention", "context_lens", context_lens).shape
    return np.full(1, _ops.count_seqs("paged_attention", num_seqs, shape), np.int32)


@at_callers_line
@_contract
def paged_attention(
    query: ArrayLike,
    kv_cache: KvCache,
    context_lens: ArrayLike,
    block_tables: ArrayLike,
    query_start_loc: ArrayLike,
    num_seqs: ArrayLike | None = None,
    scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    causal: bool = True,
    return_lse: bool = False,
    max_query_len: int = 0,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool | None = None,
) -> Any:
    """Attention of a ragged batch over a paged KV cache: prefill, decode or both in one call."""
    if isinstance(sinks, numbers.Real) and not isinstance(sinks, bool):
        sinks = _schema.number("paged_attention: sinks", "float", sinks)
        sinks = np.full(np.shape(query)[1:2], sinks, np.float32)
    cache, v_cache = _split_cache("paged_attention", kv_cache)
    count = _count(num_seqs, context_lens)
    args = (query, cache, context_lens, block_tables, query_start_loc, count)
    attrs = (scale, sliding_window, soft_cap, causal, return_lse, max_query_len, out_dtype)
    return invoke(
        "paged_attention", (*args, v_cache, sinks, k_scale, v_scale), (*attrs, batch_invariant)
    )


@at_callers_line
def ragged_paged_attention(
    q: ArrayLike,
    kv_pages: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    num_seqs: ArrayLike,
    *,
    sm_scale: float | None = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> jax.Array:
    """The TPU kernel's signature (jax.experimental.pallas.ops.tpu.ragged_paged_attention, v2).

    Code written for TPUs runs unchanged: this is paged_attention with the interleaved cache. The
    TPU's block sizes, vmem_limit_bytes and mask_value (masked logits are left out exactly) are
    accepted and have no effect.

    Args:
      q: as paged_attention's query.
      kv_pages: [total_num_pages, page_size, 2 * num_kv_heads, head_dim], K on even heads.
      kv_lens: as context_lens.
      page_indices: as block_tables.
      cu_q_lens: as query_start_loc.
      num_seqs: as there, like all that follow but for the default of sm_scale.

    Returns:
      The attention's output, shape and dtype of q.

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    del mask_value, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes
    if isinstance(kv_pages, tuple | list) or getattr(kv_pages, "ndim", 4) != 4:
        raise InvalidArgumentError(
            "ragged_paged_attention: kv_pages must be one array [pages, page_size, 2 * kv_heads, "
            "head_dim]; paged_attention takes the other layouts"
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


@at_callers_line
@_docs.contract(_docs.UPDATE_KV_CACHE)
def update_kv_cache(
    key: ArrayLike,
    value: ArrayLike,
    kv_cache: _Cache,
    slot_mapping: ArrayLike,
    *,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
) -> _Cache:
    """Writes the keys and values of new tokens into their slots of a paged cache.

    In place where the cache is donated (jax.jit(..., donate_argnums=...)) or is a temporary of the
    program, else on a copy, as JAX's functional rules ask.
    """
    cache, v_cache = _split_cache("update_kv_cache", kv_cache)
    args = (key, value, cache, slot_mapping, v_cache, k_scale, v_scale)
    updated: _Cache = invoke("update_kv_cache", args, ())
    return updated
