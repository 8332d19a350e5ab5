"""Random problems over every feature of the ops and their combinations, from a seed.

A Static holds what XLA compiles for (shapes, dtypes, features); `paged_attention_case` and
`update_case` fill one with data, so that many cases share one compilation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float32", "bfloat16", "float16")
FP8 = ("float8_e4m3fn", "float8_e5m2")
LAYOUTS = ("interleaved", "pair", "stacked")
OF_TOKENS = -1  # of Static.k_scale
BAD = ("page", "context_long", "context_negative", "rows_past_end", "num_seqs")


def np_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclasses.dataclass(frozen=True)
class Static:
    """The compile-time part of a problem; no feature unless it is asked for."""

    dtype: str
    cache_dtype: str
    tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    pages: int
    page_size: int
    max_seqs: int
    max_pages: int
    scale: float
    layout: str = "interleaved"
    sliding_window: int = 0
    soft_cap: float = 0.0
    causal: bool = True
    sinks: bool = False
    k_scale: int = 0  # elements; 0 for none, OF_TOKENS for one for each token and head
    v_scale: int = 0
    return_lse: bool = False
    max_query_len: int = 0  # whether sequences keep it or not
    out_dtype: str = ""  # "" for dtype

    @property
    def result_dtype(self) -> str:
        return self.out_dtype or self.dtype

    @property
    def scales(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the scales that a problem has."""
        of_tokens = (self.pages, self.page_size, self.kv_heads)
        sizes = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return {n: of_tokens if s == OF_TOKENS else (s,) for n, s in sizes.items() if s}

    def attrs(self) -> dict[str, Any]:
        """The op's attributes by name, except out_dtype and optional_args."""
        given = {"scale": self.scale, "causal": self.causal, "return_lse": self.return_lse}
        given["max_query_len"] = self.max_query_len
        caps = {"sliding_window": self.sliding_window, "soft_cap": self.soft_cap}
        return given | {name: value for name, value in caps.items() if value}


# For tests of anything but the numbers.
SMALL = Static(
    dtype="float32",
    cache_dtype="float32",
    tokens=12,
    q_heads=4,
    kv_heads=2,
    head_dim=16,
    pages=10,
    page_size=4,
    max_seqs=3,
    max_pages=4,
    scale=0.25,
)


@dataclasses.dataclass
class Case:
    """A problem with its data: arguments by name, absent optional ones left out."""

    static: Static
    args: dict[str, np.ndarray]
    bad: str  # what was put wrong, or ""

    def optional_args(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self.args]


def random_static(rng: np.random.Generator) -> Static:
    pick = rng.choice
    dtype = str(pick(FLOATS))
    roll = rng.random()
    cache_dtype = dtype if roll < 0.6 else str(pick(FP8)) if roll < 0.85 else str(pick(FLOATS))
    kv_heads = int(pick([1, 2, 3, 4]))
    group = int(pick([1, 1, 2, 3, 4, 8]))
    head_dim = int(pick([1, 5, 16, 33, 64, 64, 80, 96, 128, 128, 192, 256, 512]))
    page_size = int(pick([1, 3, 8, 16, 16, 16, 32, 64]))
    max_seqs = int(rng.integers(1, 6))
    max_pages = max(1, int(rng.integers(1, 130)) // page_size)
    fp8 = cache_dtype in FP8
    scales = [1, kv_heads, 0, OF_TOKENS] if fp8 else [0, 0, 0, 1, kv_heads, OF_TOKENS]
    return Static(
        dtype=dtype,
        cache_dtype=cache_dtype,
        layout=str(pick(LAYOUTS)),
        tokens=int(pick([1, 2, 5, 8, 16, 33, 64])),
        q_heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        pages=int(rng.integers(1, 12)) + max_pages,
        page_size=page_size,
        max_seqs=max_seqs,
        max_pages=max_pages,
        scale=float(np.float32(head_dim**-0.5 * pick([1.0, 1.0, 0.3, 2.0]))),
        sliding_window=int(pick([0, 0, 1, 7, 40])),
        soft_cap=float(pick([0.0, 0.0, 5.0, 30.0])),
        causal=bool(rng.random() < 0.85),
        sinks=bool(rng.random() < 0.3),
        k_scale=int(pick(scales)),
        v_scale=int(pick(scales)),
        return_lse=bool(rng.random() < 0.5),
        out_dtype=str(pick(["", "", "", *FLOATS])),
        max_query_len=int(pick([0, 0, 1, 4])),
    )


def _random_cache(s: Static, rng: np.random.Generator) -> dict[str, np.ndarray]:
    heads = 2 * s.kv_heads if s.layout == "interleaved" else s.kv_heads
    shape = (s.pages, s.page_size, heads, s.head_dim)
    if s.layout == "stacked":
        shape = (2, *shape)
    make = lambda: rng.standard_normal(shape, np.float32).astype(np_dtype(s.cache_dtype))  # noqa: E731
    cache = {"kv_cache": make()}
    if s.layout == "pair":
        cache["v_cache"] = make()
    return cache


def _random_lengths(s: Static, rng: np.random.Generator, num_seqs: int):
    """Query lengths that fit into the rows, and contexts: at times shorter, as padding has them."""
    kind = rng.choice(["decode", "prefill", "mixed"])
    left, queries, contexts = s.tokens, [], []
    for _ in range(num_seqs):
        most = min(left, s.max_pages * s.page_size)
        if kind == "decode" or (kind == "mixed" and rng.random() < 0.5):
            length = min(1, most)
        else:
            length = int(rng.integers(min(1, most), most + 1)) if rng.random() < 0.9 else 0
        high = s.max_pages * s.page_size
        context = length if kind == "prefill" else int(rng.integers(length, high + 1))
        if rng.random() < 0.15:
            context = int(rng.integers(0, length + 1)) if rng.random() < 0.5 else 0
        queries.append(length)
        contexts.append(context)
        left -= length
    return queries, contexts


def paged_attention_case(s: Static, rng: np.random.Generator) -> Case:
    num_seqs = s.max_seqs
    if rng.random() < 0.5:
        num_seqs = int(rng.integers(1, s.max_seqs + 1)) if rng.random() < 0.95 else 0
    queries, contexts = _random_lengths(s, rng, num_seqs)
    starts = np.concatenate([[0], np.cumsum(queries, dtype=np.int64)])
    padded = np.full(s.max_seqs + 1, starts[-1], np.int32)
    padded[: num_seqs + 1] = starts
    context_lens = rng.integers(-5, 1000, s.max_seqs).astype(np.int32)  # padding holds anything
    context_lens[:num_seqs] = contexts
    tables = rng.integers(0, s.pages, (s.max_seqs, s.max_pages)).astype(np.int32)
    args = {
        "query": rng.standard_normal((s.tokens, s.q_heads, s.head_dim), np.float32).astype(
            np_dtype(s.dtype)
        ),
        **_random_cache(s, rng),
        "context_lens": context_lens,
        "block_tables": tables,
        "query_start_loc": padded,
        "num_seqs": np.array([num_seqs], np.int32),
    }
    if s.sinks:
        args["sinks"] = rng.standard_normal(s.q_heads).astype(np.float32)
    for name in s.scales:
        args[name] = rng.uniform(0.5, 1.5, s.scales[name]).astype(np.float32)
    case = Case(s, args, "")
    if rng.random() < 0.5:
        _poison_unused(case)
    for i in range(num_seqs):  # entries past the context may be anything
        used = -(-contexts[i] // s.page_size)
        tables[i, used:] = rng.choice([-1, 2**31 - 1, s.pages, 0])
    if num_seqs and rng.random() < 0.2:
        case.bad = str(rng.choice(BAD))
        _put_wrong(case, rng, num_seqs)
    return case


def _poison_unused(case: Case) -> None:
    """NaN into every cache slot that no sequence may see."""
    s, args = case.static, case.args
    seen = np.zeros((s.pages, s.page_size), bool)
    for i in range(int(args["num_seqs"][0])):
        token = np.arange(int(args["context_lens"][i]))
        seen[args["block_tables"][i, token // s.page_size], token % s.page_size] = True
    for name in ("kv_cache", "v_cache"):
        if name in args:
            cache = args[name]
            view = np.moveaxis(cache, 0, 2) if s.layout == "stacked" else cache
            view[~seen] = np_dtype(s.cache_dtype).type(np.nan)
    for name, shape in s.scales.items():
        if len(shape) == 3:
            args[name][~seen] = np.nan


def _put_wrong(case: Case, rng: np.random.Generator, num_seqs: int) -> None:
    s, args = case.static, case.args
    i = int(rng.integers(num_seqs))
    if case.bad == "page" and args["context_lens"][i] > 0:
        last = (int(args["context_lens"][i]) - 1) // s.page_size  # read whatever the window is
        args["block_tables"][i, last] = rng.choice([-1, s.pages, 2**31 - 1, -(2**31)])
    elif case.bad == "context_long":
        args["context_lens"][i] = s.max_pages * s.page_size + int(rng.choice([1, 2**30]))
    elif case.bad == "context_negative":
        args["context_lens"][i] = rng.choice([-1, -(2**31)])
    elif case.bad == "rows_past_end":  # of the last sequence, lest rows belong to two
        args["query_start_loc"][num_seqs:] = s.tokens + int(rng.choice([1, 2**30]))
    elif case.bad == "num_seqs":
        args["num_seqs"][0] = rng.choice([-1, -(2**31)])


def update_case(s: Static, rng: np.random.Generator) -> Case:
    shape = (s.tokens, s.kv_heads, s.head_dim)
    wide = 300.0 if rng.random() < 0.3 else 1.0  # large values saturate fp8
    slots = s.pages * s.page_size
    mapping = rng.permutation(max(slots, s.tokens))[: s.tokens].astype(np.int32)
    for i in range(s.tokens):
        if rng.random() < 0.15:
            mapping[i] = rng.choice([-1, slots, 2**31 - 1, -(2**31)])
    args = {
        "key": (wide * rng.standard_normal(shape, np.float32)).astype(np_dtype(s.dtype)),
        "value": (wide * rng.standard_normal(shape, np.float32)).astype(np_dtype(s.dtype)),
        **_random_cache(s, rng),
        "slot_mapping": mapping,
    }
    if s.cache_dtype in FP8:
        for name, shape in s.scales.items():
            args[name] = rng.choice([0.25, 0.5, 1.0, 2.0, 0.3], shape).astype(np.float32)
    return Case(s, args, "")
