"""ragged_paged_attention_v3 and its head_dim-64 variant: random problems and their truth.

A packed cache is unpacked into the interleaved one of paged_attention, whose oracle knows the rest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from attention_oracle import _is_valid
from compare import Histogram, check_attention
from problems import BAD, FLOATS, FP8, Case, Static, _put_wrong, _random_lengths, np_dtype

# The arguments in the order of the signature.
TENSORS = (
    "queries",
    "keys",
    "values",
    "kv_cache",
    "kv_lens",
    "page_indices",
    "cu_q_lens",
    "distribution",
)


@dataclasses.dataclass(frozen=True)
class V3Static:
    """What is fixed while XLA compiles; `base` is the problem as paged_attention has it."""

    base: Static
    hd64: bool = False
    update_kv_cache: bool = True
    skip_kv_mask: bool = False
    q_scale: float | None = None
    k_scale: float | None = None
    v_scale: float | None = None

    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the call."""
        s = self.base
        names = ("q_scale", "k_scale", "v_scale")
        kwargs = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        kwargs |= dict(
            sm_scale=s.scale,
            sliding_window=s.sliding_window or None,
            soft_cap=s.soft_cap or None,
            max_query_len=s.max_query_len,
        )
        if not self.hd64:
            kwargs |= dict(
                use_causal_mask=s.causal,
                update_kv_cache=self.update_kv_cache,
                skip_kv_mask=self.skip_kv_mask,
                out_dtype=s.out_dtype or None,
            )
        return kwargs


@dataclasses.dataclass
class V3Case:
    """A problem with its data: the tensors by name, attention_sink only where there is one."""

    static: V3Static
    args: dict[str, np.ndarray]
    bad: str


def packed_shape(s: Static, hd64: bool) -> tuple[int, ...]:
    packing = 4 // np_dtype(s.cache_dtype).itemsize
    heads = s.kv_heads if hd64 else 2 * s.kv_heads
    width = 128 if hd64 else -(-s.head_dim // 128) * 128
    return (s.pages, s.page_size, -(-heads // packing), packing, width)


def unpack(cache: np.ndarray, s: Static, hd64: bool) -> tuple[np.ndarray, np.ndarray]:
    """(K, V) views [pages, page_size, kv_heads, head_dim] of a packed cache."""
    rows = cache.reshape(s.pages, s.page_size, -1, cache.shape[-1])
    if hd64:
        return rows[:, :, : s.kv_heads, :64], rows[:, :, : s.kv_heads, 64:]
    rows = rows[:, :, : 2 * s.kv_heads, : s.head_dim]
    return rows[:, :, 0::2], rows[:, :, 1::2]


def append(case: V3Case) -> np.ndarray:
    """The cache after the call: new tokens of right sequences in their slots, nothing else."""
    s, args = case.static.base, case.args
    cache = args["kv_cache"].copy()
    if not case.static.update_kv_cache:
        return cache
    keys, values = unpack(cache, s, case.static.hd64)
    tables = args["page_indices"].reshape(s.max_seqs, s.max_pages)
    starts, contexts = args["cu_q_lens"].astype(int), args["kv_lens"].astype(int)
    for seq in range(min(max(int(args["distribution"][2]), 0), s.max_seqs)):
        begin, end, context = starts[seq], starts[seq + 1], contexts[seq]
        if not _is_valid(begin, end, context, s.tokens, s.max_pages * s.page_size):
            continue
        for token in range(begin, end):
            position = context - end + token
            if position < 0:
                continue
            page = int(tables[seq, position // s.page_size])
            if 0 <= page < s.pages:
                keys[page, position % s.page_size] = args["keys"][token]
                values[page, position % s.page_size] = args["values"][token]
    return cache


def as_paged_attention(case: V3Case, cache: np.ndarray) -> Case:
    """The same problem as a case of paged_attention, over the cache that the call leaves."""
    static, args = case.static, case.args
    s = static.base
    keys, values = unpack(cache, s, static.hd64)
    interleaved = np.stack([keys, values], axis=3).reshape(
        s.pages, s.page_size, 2 * s.kv_heads, s.head_dim
    )
    query = args["queries"]
    scale = s.scale
    if static.q_scale is not None:
        largest = float(ml_dtypes.finfo(np_dtype(s.cache_dtype)).max)
        # The division is in the queries' dtype.
        query = (query / query.dtype.type(static.q_scale)).astype(np.float32)
        query = np.clip(query, -largest, largest).astype(np_dtype(s.cache_dtype))
        query = query.astype(args["queries"].dtype)
        scale = float(np.float32(scale * static.q_scale))
    named = {
        "query": query,
        "kv_cache": interleaved,
        "context_lens": args["kv_lens"],
        "block_tables": args["page_indices"].reshape(s.max_seqs, s.max_pages),
        "query_start_loc": args["cu_q_lens"],
        "num_seqs": args["distribution"][2:],
    }
    if "attention_sink" in args:
        named["sinks"] = args["attention_sink"]
    for name in ("k_scale", "v_scale"):
        if getattr(static, name) is not None:
            named[name] = np.array([getattr(static, name)], np.float32)
    return Case(dataclasses.replace(s, scale=scale), named, case.bad)


def check(case: V3Case, out: Any, cache: Any, histogram: Histogram | None = None) -> None:
    """Asserts that a call's results are right: the cache bit for bit."""
    want = append(case)
    got = np.asarray(cache)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(
        got.view(np.uint8), want.view(np.uint8), err_msg=f"cache: {case.static} {case.bad}"
    )
    check_attention(as_paged_attention(case, want), out, None, histogram)


def random_v3_static(rng: np.random.Generator) -> V3Static:
    pick = rng.choice
    hd64 = bool(rng.random() < 0.4)
    dtype = str(pick(FLOATS))
    cache_dtype = str(pick([dtype, dtype, *FP8, *FLOATS]))
    kv_heads = int(pick([1, 2, 3, 4, 8]))
    head_dim = 64 if hd64 else int(pick([5, 64, 80, 96, 128, 128, 256, 512]))
    page_size = int(pick([1, 4, 16, 16, 32, 64, 256]))
    max_seqs = int(rng.integers(1, 6))
    max_pages = max(1, int(rng.integers(1, 130)) // page_size)
    causal = hd64 or bool(rng.random() < 0.85)
    scaled = cache_dtype in FP8 or rng.random() < 0.1
    base = Static(
        dtype=dtype,
        cache_dtype=cache_dtype,
        tokens=int(pick([1, 2, 5, 16, 33, 64])),
        q_heads=kv_heads * int(pick([1, 2, 3, 4, 8])),
        kv_heads=kv_heads,
        head_dim=head_dim,
        pages=max_seqs * max_pages + int(rng.integers(0, 4)),
        page_size=page_size,
        max_seqs=max_seqs,
        max_pages=max_pages,
        scale=float(np.float32(head_dim**-0.5 * pick([1.0, 1.0, 0.3, 2.0]))),
        sliding_window=int(pick([0, 0, 1, 7, 40])),
        soft_cap=float(pick([0.0, 0.0, 5.0, 30.0])),
        causal=causal,
        sinks=hd64 and bool(rng.random() < 0.6),
        out_dtype="" if hd64 else str(pick(["", "", "", *FLOATS])),
        max_query_len=int(pick([0, 0, 1, 4])),
    )
    return V3Static(
        base,
        hd64,
        update_kv_cache=hd64 or bool(rng.random() < 0.85),
        skip_kv_mask=not causal and bool(rng.random() < 0.5),
        q_scale=float(pick([0.5, 2.0])) if scaled and rng.random() < 0.4 else None,
        k_scale=float(pick([0.5, 1.5])) if scaled else None,
        v_scale=float(pick([0.5, 1.5])) if scaled else None,
    )


def v3_case(static: V3Static, rng: np.random.Generator) -> V3Case:
    """Each sequence has its own pages; NaN where nothing may be read; at times a wrong index."""
    s = static.base
    num_seqs = int(rng.integers(1, s.max_seqs + 1)) if rng.random() < 0.95 else 0
    queries, contexts = _random_lengths(s, rng, num_seqs)
    starts = np.concatenate([[0], np.cumsum(queries, dtype=np.int64)])
    cu_q_lens = rng.integers(-5, 1000, s.max_seqs + 1).astype(np.int32)  # padding holds anything
    cu_q_lens[: num_seqs + 1] = starts
    kv_lens = rng.integers(-5, 1000, s.max_seqs).astype(np.int32)
    kv_lens[:num_seqs] = contexts
    pages = rng.permutation(s.pages)[: s.max_seqs * s.max_pages]
    tables = pages.astype(np.int32).reshape(s.max_seqs, s.max_pages)
    for i in range(num_seqs):  # entries past the context may be anything
        tables[i, -(-contexts[i] // s.page_size) :] = rng.choice([-1, 2**31 - 1, s.pages, 0])
    tables[num_seqs:] = rng.integers(-(2**31), 2**31)

    def floats(*shape: int, dtype: str) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(np_dtype(dtype))

    cache = np.full(packed_shape(s, static.hd64), np.nan, np_dtype(s.cache_dtype))
    keys, values = unpack(cache, s, static.hd64)
    for i in range(num_seqs):
        # What the call itself writes need not be there.
        there = max(contexts[i] - (queries[i] if static.update_kv_cache else 0), 0)
        token = np.arange(there)
        where = (tables[i, token // s.page_size], token % s.page_size)
        for part in (keys, values):
            part[where] = floats(there, s.kv_heads, s.head_dim, dtype=s.cache_dtype)
    args = {
        "queries": floats(s.tokens, s.q_heads, s.head_dim, dtype=s.dtype),
        "keys": floats(s.tokens, s.kv_heads, s.head_dim, dtype=s.cache_dtype),
        "values": floats(s.tokens, s.kv_heads, s.head_dim, dtype=s.cache_dtype),
        "kv_cache": cache,
        "kv_lens": kv_lens,
        "page_indices": tables.reshape(-1),
        "cu_q_lens": cu_q_lens,
        "distribution": np.array([0, 0, num_seqs], np.int32),
    }
    if s.sinks:
        args["attention_sink"] = rng.standard_normal(s.q_heads).astype(np.float32)
    case = V3Case(static, args, "")
    if num_seqs and rng.random() < 0.25:
        case.bad = str(rng.choice(BAD))
        alias = {  # views into the same memory, under paged_attention's names
            "context_lens": kv_lens,
            "block_tables": tables,
            "query_start_loc": cu_q_lens,
            "num_seqs": args["distribution"][2:],
        }
        _put_wrong(Case(s, alias, case.bad), rng, num_seqs)
    return case
