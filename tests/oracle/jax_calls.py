"""The ops of xla_gpu.jax on a case's arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from problems import Static
from ragged_v3 import TENSORS, V3Static
from xla_gpu.jax import (
    paged_attention,
    ragged_paged_attention_hd64,
    ragged_paged_attention_v3,
    update_kv_cache,
)

INDICES = ("context_lens", "block_tables", "query_start_loc", "num_seqs")


def _take_cache(args: dict[str, Any]) -> Any:
    cache = args.pop("kv_cache")
    return (cache, args.pop("v_cache")) if "v_cache" in args else cache


def attention(static: Static, args: Mapping[str, Any]) -> tuple[jax.Array, jax.Array | None]:
    """paged_attention of a case: (out, lse or None)."""
    args = dict(args)
    cache = _take_cache(args)
    result = paged_attention(
        args.pop("query"),
        cache,
        *(args.pop(name) for name in INDICES),
        static.scale,
        static.sliding_window or None,
        static.soft_cap or None,
        causal=static.causal,
        return_lse=static.return_lse,
        max_query_len=static.max_query_len,
        out_dtype=static.out_dtype or None,
        **args,
    )
    return result if static.return_lse else (result, None)


def update(args: Mapping[str, Any]) -> tuple[jax.Array, ...]:
    """update_kv_cache of a case: one cache, or two where v_cache came."""
    args = dict(args)
    cache = _take_cache(args)
    result = update_kv_cache(
        args.pop("key"), args.pop("value"), cache, args.pop("slot_mapping"), **args
    )
    return result if isinstance(result, tuple) else (result,)


def ragged_v3(static: V3Static, args: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
    """ragged_paged_attention_v3 or its head_dim-64 variant on a case's tensors: (out, cache)."""
    tensors = [args[name] for name in TENSORS]
    if static.hd64:
        return ragged_paged_attention_hd64(*tensors, args.get("attention_sink"), **static.kwargs())
    return ragged_paged_attention_v3(*tensors, **static.kwargs())
