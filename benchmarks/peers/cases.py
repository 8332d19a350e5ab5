"""The grid: every shape that is timed, with the ratio to the best peer that the project asks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

# Whom a ratio is against: peers that read pages and round as little as we do; those and others that
# round queries or weights to fp8; keys and values that lay contiguous beforehand; a copy of as many
# bytes; our own call without what the case has besides (an fp8 cache, a soft cap, ...). A ratio of
# None is shown and asks nothing.
AGAINST = {
    "paged": ("paged",),
    "any": ("paged", "rounded"),
    "contiguous": ("contiguous",),
    "copy": ("copy",),
    "own": ("own",),
}
# What else is asked, of our rate alone: a share of the bytes a second that this machine reads at
# most, and TFLOP/s.
RATES = ("ceiling", "TFLOP/s")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
FP8 = "float8_e4m3fn"


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape of paged_attention, or of update_kv_cache (`update`: queries are its tokens)."""

    name: str
    regime: str
    queries: tuple[int, ...]  # tokens of each sequence
    contexts: tuple[int, ...]  # keys of each sequence, the new ones included
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page: int = 16
    dtype: str = "bfloat16"
    cache: str = "bfloat16"
    window: int | None = None
    soft_cap: float | None = None
    invariant: bool = False  # batch_invariant
    unaligned: bool = False  # the cache begins an element past a multiple of 16 bytes
    asked: dict[str, float | None] = dataclasses.field(default_factory=dict)  # AGAINST, RATES
    sustained: bool = False  # timed back to back, at the power limit
    update: bool = False
    # At least, of our own call alone: tokens, sequences that there is room for, and keys of each.
    tokens: int = 0
    room: int = 0
    table: int = 0

    @property
    def decode(self) -> bool:
        return not self.update and max(self.queries) == 1

    @property
    def reads(self) -> bool:
        """Whether it is memory that bounds it: under 150 FLOP a byte; Hopper does some 170."""
        return not self.update and self.flops() < 150 * self.bytes()

    @property
    def own(self) -> bool:
        """Whether it is beside our own calls alone: of an option that peers do not have."""
        return self.invariant or self.unaligned

    @property
    def uniform(self) -> bool:
        return len(set(self.queries)) == len(set(self.contexts)) == 1

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def bytes(self) -> int:
        """Of keys and values, each read once; of an update, read and written."""
        token = 2 * self.kv_heads * self.head_dim
        if self.update:
            return sum(self.queries) * token * (BYTES[self.dtype] + BYTES[self.cache])
        seen = (
            min(context, self.window + queries - 1) if self.window else context
            for queries, context in zip(self.queries, self.contexts)
        )
        return sum(seen) * token * BYTES[self.cache]

    def flops(self) -> int:
        """Multiplications and additions of both products, under the causal mask and the window."""
        if self.update:
            return 0
        pairs = sum(
            sum(min(self.window or context, context - queries + 1 + i) for i in range(queries))
            for queries, context in zip(self.queries, self.contexts)
        )
        return 4 * pairs * self.q_heads * self.head_dim


def _with(name: str, more: dict) -> str:
    """The name with what is not usual."""
    words = [
        f"{more.get('q_heads', 32)}/{more.get('kv_heads', 8)} heads"
        if {"q_heads", "kv_heads"} & set(more)
        else "",
        f"head_dim {more['head_dim']}" if "head_dim" in more else "",
        f"page {more['page']}" if "page" in more else "",
        f"window {more['window']}" if more.get("window") else "",
        f"soft cap {more['soft_cap']:g}" if more.get("soft_cap") else "",
        "f32" if more.get("dtype") == "float32" else "",
        "fp8 cache" if more.get("cache") == FP8 else "",
        "batch-invariant" if more.get("invariant") else "",
        "unaligned" if more.get("unaligned") else "",
        f"tables for {more['table']}" if more.get("table") else "",
    ]
    return ", ".join([name, *(word for word in words if word)])


def _case(name: str, regime: str, queries: Sequence[int], contexts: Sequence[int], **more) -> Case:
    ratio = more.pop("asked", None)
    asked = ratio if isinstance(ratio, dict) else {"paged": ratio}
    shown = {k: v for k, v in more.items() if k != "sustained"}
    full = _with(name, shown)
    return Case(full, regime, tuple(queries), tuple(contexts), asked=asked, **more)


def _decode(regime: str, batch: int, context: int, queries: int = 1, **more) -> Case:
    name = f"{'decode' if queries == 1 else f'{queries} queries'} {batch}x{context}"
    return _case(name, regime, [queries] * batch, [context] * batch, **more)


def _prefill(regime: str, batch: int, length: int, **more) -> Case:
    return _case(f"prefill {batch}x{length}", regime, [length] * batch, [length] * batch, **more)


def _chunk(regime: str, queries: int, context: int, **more) -> Case:
    return _case(f"prefill {queries} over {context}", regime, [queries], [context], **more)


def _mixed(regime: str, prompt: int, context: int, batch: int, length: int, **more) -> Case:
    name = f"{prompt} queries over {context}, {batch} decodes of {length}"
    queries, contexts = [prompt] + [1] * batch, [context] + [length] * batch
    return _case(name, regime, queries, contexts, **more)


def _lengths(count: int, most: int) -> list[int]:
    chosen = random.Random(0)
    return [chosen.randint(1, most) for _ in range(count)]


def _table() -> list[Case]:
    latency, middling, large = "Decode, latency", "Decode, middling", "Decode, large"
    several, eight, windows = "Several queries, one kv head", "fp8 cache", "Sliding windows"
    odd, mixed = "Pages of any size", "Mixed batches"
    prompts, others, rest = "Prefill, head_dim 128", "Prefill, other shapes", "f32, head_dim 512"
    options, updates = "Options, beside none", "update_kv_cache"
    ragged = _lengths(64, 8192)
    paged = {"sustained": True, "asked": {"paged": 1.18, "contiguous": 1.08}}
    both = {"cache": FP8, "asked": {"paged": 1.6, "any": 1.05}}
    full = {"paged": 1.04, "ceiling": 0.97}  # of large decode
    nearly = {"paged": 1.02, "ceiling": 0.97}
    single = {"dtype": "float32", "cache": "float32"}
    f32 = {**single, "asked": {"paged": None, "TFLOP/s": 120}}
    option = {"asked": {"own": None}}
    short = _lengths(1024, 256)
    return [
        _decode(latency, 1, 1024, asked=1.4),
        _decode(latency, 1, 8192, asked=1.3),
        _decode(latency, 8, 1024, asked=1.25),
        _decode(latency, 1, 32768, asked=1.1),
        *(_decode(middling, b, c, asked=1.08) for b, c in ((64, 1024), (128, 1024), (8, 8192))),
        _decode(middling, 1, 131072, asked=1.08),
        _case("decode 64 of U[1,8192]", middling, [1] * 64, ragged, asked=1.08),
        _case("decode 131072, 63x512", middling, [1] * 64, [131072] + [512] * 63, asked=1.08),
        _case("decode 1024 of U[1,256]", middling, [1] * 1024, short, asked=1.05),
        *(_decode(large, b, c, asked=full) for b, c in ((64, 4096), (128, 4096), (256, 2048))),
        _decode(large, 8, 32768, asked=full),
        _decode(large, 64, 4096, page=1, asked=nearly),
        *(_decode(large, 64, 4096, page=page, asked=full) for page in (8, 64, 256)),
        _decode(large, 64, 4096, q_heads=64, asked=full),
        _decode(large, 64, 4096, kv_heads=32, asked=full),
        _decode(large, 64, 4096, head_dim=64, asked=full),
        _decode(large, 64, 4096, head_dim=256, asked=nearly),
        *(
            _decode(odd, b, c, page=page)
            for page in (1, 20)
            for b, c in ((1, 8192), (8, 1024), (64, 1024), (64, 4096), (8, 32768))
            if (b, c, page) != (64, 4096, 1)  # above
        ),
        *(_case("decode 64 of U[1,8192]", odd, [1] * 64, ragged, page=page) for page in (1, 20)),
        _case("decode 1024 of U[1,256]", odd, [1] * 1024, short, page=1),
        _decode(odd, 64, 4096, page=1, q_heads=32, kv_heads=1),
        _decode(odd, 64, 4096, page=1, cache=FP8),
        _mixed(odd, 256, 16384, 127, 1024, page=1),
        *(_decode(several, 64, 4096, queries, asked=1.05) for queries in (2, 4, 8, 16)),
        *(_decode(several, 8, 32768, queries, asked=1.05) for queries in (2, 4, 8, 16)),
        *(_decode(several, 64, 4096, q_heads=h, kv_heads=1, asked=1.05) for h in (8, 16, 32)),
        *(_decode(eight, b, c, **both) for b, c in ((1, 8192), (8, 32768), (64, 4096))),
        _decode(eight, 128, 4096, **both),
        _prefill(eight, 4, 4096, cache=FP8, asked={"any": None, "own": 1.0}),
        _decode(windows, 64, 4096, window=128, asked=1.1),
        *(_decode(windows, 8, 32768, window=w, asked=1.1) for w in (128, 1024, 4096)),
        _decode(windows, 1, 131072, window=4096, asked=1.1),
        _chunk(windows, 2048, 32768, window=1024),
        _prefill(prompts, 1, 16384, **paged),
        _prefill(prompts, 4, 4096, **paged),
        _prefill(prompts, 16, 1024, **paged),
        _chunk(prompts, 2048, 32768, **paged),
        *(_prefill(prompts, 4, 4096, page=page, **paged) for page in (8, 128)),
        *(_prefill(others, 4, 4096, head_dim=d, asked=1.05) for d in (64, 96, 192, 256)),
        _prefill(others, 4, 4096, kv_heads=32, asked=1.05),
        *(_prefill(others, b, s, asked=1.05) for b, s in ((128, 128), (1, 1024), (1, 4096))),
        *(_chunk(others, queries, 32768, asked=1.05) for queries in (16, 64, 512)),
        _mixed(mixed, 2048, 8192, 63, 4096, asked=1.25),
        _mixed(mixed, 256, 16384, 127, 1024, asked=1.25),
        _decode(rest, 64, 4096, head_dim=512, asked=1.5),
        _prefill(rest, 4, 4096, head_dim=512, asked=1.5),
        _decode(rest, 64, 4096, **single, asked={"paged": None, "ceiling": 0.8}),
        *(_prefill(rest, b, s, **f32) for b, s in ((4, 4096), (1, 1024), (16, 1024))),
        *(_chunk(rest, queries, 32768, **f32) for queries in (64, 512)),
        _prefill(rest, 2, 4096, head_dim=64, **f32),
        _prefill(options, 4, 4096, soft_cap=50.0, asked={"paged": None, "own": None}),
        _decode(options, 1, 131072, invariant=True, **option),
        _decode(options, 64, 4096, invariant=True, **option),
        _chunk(options, 64, 32768, invariant=True, **option),
        _prefill(options, 4, 4096, invariant=True, **option),
        _decode(options, 64, 1024, unaligned=True, **option),
        *(
            _case(
                f"update {n}",
                updates,
                [n],
                [n],
                update=True,
                asked={"paged": None, "copy": 0.8 if n >= 4096 else None},
            )
            for n in (128, 1024, 4096, 8192, 32768)
        ),
    ]


CASES = _table()


def _served() -> list[Case]:
    """Decode steps of a server: padded to 16 tokens, with room for 256 sequences of 2048 keys or
    more."""
    long = {"table": 32768}
    shapes = [
        (320, {}),
        (1500, {}),
        (320, {"q_heads": 32, "kv_heads": 4}),
        (320, {"q_heads": 4, "kv_heads": 2}),
        (4000, {"table": 8192}),
        *((n, long | more) for more in ({}, {"cache": FP8}) for n in (320, 1500, 32768)),
    ]
    padded = {"tokens": 16, "room": 256, "table": 2048}
    equal = [
        dataclasses.replace(_decode("Served steps", n, context, **more), **(padded | more))
        for context, more in shapes
        for n in (1, 4, 8, 16)
    ]
    ragged = [
        _case(f"decode {n} of U[1,{most}]", "Served steps", [1] * n, _lengths(n, most), **long)
        for most in (640, 3000)
        for n in (4, 8, 16)
    ]
    return equal + [dataclasses.replace(case, **(padded | long)) for case in ragged]


SERVED = _served()  # of our own builds alone


def _prompts(regime: str, **more) -> list[Case]:
    prompts = [
        (4, 4096, {}),
        (1, 16384, {"sustained": True}),
        (16, 1024, {}),
        (1, 2048, {}),
        (4, 4096, {"kv_heads": 32}),
        (4, 4096, {"window": 1024}),
        (4, 4096, {"cache": FP8}),
        (4, 4096, {"page": 20}),
        (1, 1024, {}),
        (128, 128, {}),
    ]
    return [
        *(_prefill(regime, b, s, **more, **of_prompt) for b, s, of_prompt in prompts),
        *(_chunk(regime, queries, 32768, **more) for queries in (16, 64, 512, 2048)),
    ]


PROMPTS = [  # as SERVED
    *_prompts("Prompts, head_dim 64", head_dim=64),
    *_prompts("Prompts, soft cap", soft_cap=50.0),
    *(_prefill("Prompts, soft cap", 4, 4096, soft_cap=50.0, head_dim=d) for d in (64, 256)),
]


def random_cases(count: int, seed: int) -> list[Case]:
    """Shapes that are in no table: the same ones for the same count and seed."""
    chosen = random.Random(seed)
    cases = []
    for number in range(count):
        kind = chosen.choice(("decode", "decode", "prefill", "mixed"))
        budget = 2 ** chosen.uniform(11, 19 if kind == "decode" else 15)  # keys of all sequences
        batch = int(2 ** chosen.uniform(0, 7.5))
        most = max(2, int(2 * budget / batch))
        contexts = [chosen.randint(1, most) for _ in range(batch)]
        if kind == "decode":
            queries = [1] * batch
        elif kind == "prefill":
            queries = [chosen.randint(1, n) for n in contexts]
        else:
            queries = [1 if chosen.random() < 0.8 else chosen.randint(1, n) for n in contexts]
        kv_heads = chosen.choice((1, 2, 4, 8, 16))
        more = {
            "q_heads": kv_heads * chosen.choice((1, 2, 3, 4, 5, 8)),
            "kv_heads": kv_heads,
            "head_dim": chosen.choice((64, 80, 96, 128, 128, 128, 192, 256)),
            "page": chosen.choice((8, 16, 16, 32, 48, 64, 128)),
        }
        if chosen.random() < 0.2:
            more["window"] = int(2 ** chosen.uniform(5, 12))
        name = f"random {seed}.{number} {kind} {batch} of U[1,{most}]"
        cases.append(_case(name, "Shapes of no table", queries, contexts, **more))
    return cases
