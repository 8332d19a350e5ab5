"""Paged attention and cache updates in float64 NumPy: obvious code, the truth for every platform.

Inputs are taken as stored (bf16, fp8, ... already rounded), so a kernel's error is its own.
"""

from __future__ import annotations

import numpy as np


def split_cache(kv_cache, v_cache=None):
    """(K, V) views [pages, page_size, kv_heads, head_dim] of any of the three layouts."""
    if v_cache is not None:
        return kv_cache, v_cache
    if kv_cache.ndim == 5:
        return kv_cache[0], kv_cache[1]
    return kv_cache[:, :, 0::2], kv_cache[:, :, 1::2]


def _is_valid(start, end, context, tokens, max_context):
    return 0 <= start <= end <= tokens and 0 <= context <= max_context


def paged_attention(
    query,
    kv_cache,
    context_lens,
    block_tables,
    query_start_loc,
    num_seqs,
    *,
    scale,
    sliding_window=0,
    soft_cap=0.0,
    causal=True,
    v_cache=None,
    sinks=None,
    k_scale=None,
    v_scale=None,
):
    """(out f64 [tokens, q_heads, head_dim], lse f64 [tokens, q_heads])."""
    keys, values = split_cache(kv_cache, v_cache)
    num_pages, page_size, kv_heads, head_dim = keys.shape
    tokens, q_heads, _ = query.shape
    max_seqs, max_pages = block_tables.shape
    group = q_heads // kv_heads
    k_factor, v_factor = (
        np.broadcast_to(1.0 if scale is None else scale.astype(np.float64), keys.shape[:3])
        for scale in (k_scale, v_scale)
    )

    out = np.zeros((tokens, q_heads, head_dim))
    lse = np.full((tokens, q_heads), -np.inf)
    owned = np.zeros(tokens, bool)  # rows of valid sequences, which no invalid one takes away
    for s in range(min(max(int(num_seqs[0]), 0), max_seqs)):
        start, end, context = (
            int(query_start_loc[s]),
            int(query_start_loc[s + 1]),
            int(context_lens[s]),
        )
        rows = slice(max(start, 0), max(min(end, tokens), 0))
        pages = block_tables[s, : -(-context // page_size)] if context > 0 else block_tables[s, :0]
        if (
            not _is_valid(start, end, context, tokens, max_pages * page_size)
            or np.any(pages < 0)
            or np.any(pages >= num_pages)
        ):
            out[rows][~owned[rows]] = np.nan
            lse[rows][~owned[rows]] = np.nan
            continue
        owned[rows] = True
        if start == end:
            continue
        # [context, kv_heads, head_dim], and one kv head for each group of query heads.
        k = keys[pages].reshape(-1, kv_heads, head_dim)[:context].astype(np.float64)
        v = values[pages].reshape(-1, kv_heads, head_dim)[:context].astype(np.float64)
        k *= k_factor[pages].reshape(-1, kv_heads, 1)[:context]
        v *= v_factor[pages].reshape(-1, kv_heads, 1)[:context]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)

        logits = scale * np.einsum("qhd,khd->qhk", query[rows].astype(np.float64), k)
        if soft_cap:
            logits = soft_cap * np.tanh(logits / soft_cap)
        pos = context - (end - start) + np.arange(end - start)[:, None]
        key_pos = np.arange(context)
        visible = np.ones((end - start, context), bool)
        if causal:
            visible &= key_pos <= pos
        if sliding_window:
            visible &= pos - key_pos < sliding_window
        logits = np.where(visible[:, None, :], logits, -np.inf)
        sink = np.full(logits.shape[1], -np.inf) if sinks is None else sinks.astype(np.float64)
        # One more logit, without a value; without sinks, one of no weight.
        logits = np.concatenate(
            [logits, np.broadcast_to(sink[None, :, None], (*logits.shape[:2], 1))], axis=2
        )
        top = logits.max(axis=2, keepdims=True)
        top = np.where(np.isneginf(top), 0.0, top)
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = np.exp(logits - top)
            total = weights.sum(axis=2, keepdims=True)
            lse[rows] = (np.log(total) + top)[:, :, 0]
            for q in range(end - start):  # what a row does not see may be NaN
                seen = visible[q]
                sums = np.einsum("hk,khd->hd", weights[q][:, :-1][:, seen], v[seen])
                nothing = total[q] == 0
                out[start + q] = np.where(nothing, 0.0, sums / np.where(nothing, 1.0, total[q]))
    return out, lse


def update_kv_cache(
    key, value, kv_cache, slot_mapping, *, v_cache=None, k_scale=None, v_scale=None
):
    """The updated cache (a pair where v_cache came), rounded to the cache's dtype."""
    updated = kv_cache.copy()
    updated_v = None if v_cache is None else v_cache.copy()
    keys, values = split_cache(updated, updated_v)
    num_pages, page_size = keys.shape[:2]
    for new, cache, factor in ((key, keys, k_scale), (value, values, v_scale)):
        factor = np.broadcast_to(np.float32(1.0) if factor is None else factor, keys.shape[:3])
        for token, slot in enumerate(slot_mapping):
            if 0 <= slot < num_pages * page_size:
                at = slot // page_size, slot % page_size
                row = new[token].astype(np.float32) / factor[at][:, None]
                cache[at] = _store(row, cache.dtype)
    return updated if v_cache is None else (updated, updated_v)


def _store(row, dtype):
    """f32 -> the cache's dtype; fp8 saturates instead of becoming inf or NaN."""
    largest = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(str(dtype))
    if largest is not None:
        row = np.clip(row, -largest, largest)  # NaN stays NaN
    return row.astype(dtype)
