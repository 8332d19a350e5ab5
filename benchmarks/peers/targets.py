"""What the project asks, and where docs/kernels.md says what binds a line that is not met.

The ratios asked are the cases' own (cases.py); here is which lines make a target, and for those
that miss it the section with the measurement and with what was tried. A line that no `Bound` covers
is shown as unexplained.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from peers.results import AT_READ_SPEED, Results, Row

KERNELS = "../../kernels.md"  # seen from docs/benchmarks/GPU
UNEXPLAINED = "**unexplained**"
CALLS_ASKED = 1.03  # a jit of many calls over their kernels, at most


@dataclasses.dataclass(frozen=True)
class Bound:
    """What binds the cases whose names `cases` finds, as `section` (an anchor) of KERNELS shows."""

    cases: str
    words: str
    section: str


@dataclasses.dataclass(frozen=True)
class Target:
    """The lines whose "regime: case" `lines` finds, each against what it asks a ratio of."""

    name: str
    lines: str
    bounds: tuple[Bound, ...] = ()

    def bound(self, case: str) -> Bound | None:
        return next((b for b in self.bounds if re.search(b.cases, case)), None)


_ENDS = "memory, and a call's first and last microseconds"
_LOADS = "overlapping-launches-and-what-loads-alone-take"
_FIRST_KEY = "what-stands-in-front-of-the-first-key"
_ROWS = "rows-and-fp8-measured"
_LOOP = "a-loop-without-branches"
_SHORT = "short-prompts"
_WIDTHS = "what-binds-other-widths"
_WIDE = "what-binds-decode-of-wide-heads-and-of-one-long-sequence"
_F32 = "what-binds-short-prompts-and-chunks-of-f32"

TARGETS = (
    Target(
        "decode, large",
        "^Decode, large:",
        (
            Bound("page 1$", "memory; single rows cost what boxes do not", "single-rows-measured"),
            Bound("head_dim 256", "memory", _WIDE),
            Bound("", _ENDS, _LOADS),
        ),
    ),
    Target(
        "decode, middling",
        r"^Decode, middling: (?!.*U\[1,256\])",
        (
            Bound("^decode (8x8192|1x131072)$", "64 multiprocessors read 5% less", "measured-1"),
            Bound(r"x1024$|U\[1,8192\]", _ENDS, _FIRST_KEY),
            Bound("63x512", "memory, pieces' ends and a merge", _WIDE),
        ),
    ),
    Target(
        "decode of 1024 sequences of 1 to 256 keys",
        r"^Decode, middling: .*U\[1,256\]",
        (Bound("", "a piece's own time; loads alone take 95% of it", _LOADS),),
    ),
    Target(
        "decode, latency",
        "^Decode, latency:",
        (
            Bound(
                "",
                "one load after the other, to the first key and from the last",
                "from-the-launch-to-the-first-key-and-from-the-last-to-the-result",
            ),
        ),
    ),
    Target(
        "several queries a sequence; one kv head",
        "^Several queries, one kv head:",
        (
            Bound("^16 queries", "64 rows are more than a tile", _ROWS),
            Bound("queries", "memory, and a piece's merge", _ROWS),
            Bound("heads$", "the ends of a call that is short", "each-block-lays-the-line-itself"),
        ),
    ),
    Target(
        "fp8 cache, decode",
        "^fp8 cache: decode",
        (Bound("8x32768|64x4096|128x4096", "memory", _ROWS),),
    ),
    Target(
        "fp8 cache, prefill",
        "^fp8 cache: prefill",
        (Bound("", "the copy in front", "caches-of-fp8"),),
    ),
    Target(
        "sliding windows",
        "^Sliding windows: decode",
        (
            Bound("8x32768", _ENDS, _FIRST_KEY),
            Bound(
                "64x4096, window 128",
                "the launch, the first copy and the last rows",
                "tokens-that-see-few-keys-decode_tokens_sm90cuh",
            ),
        ),
    ),
    Target(
        "prefill, head_dim 128",
        "^Prefill, head_dim 128:",
        (
            Bound(
                "16x1024", "what a piece costs besides its tiles", "ends-and-beginnings-of-pieces"
            ),
            Bound("", "the tensor cores at the power limit", _LOOP),
        ),
    ),
    Target(
        "prefill, other shapes",
        "^Prefill, other shapes: (?!.* over )",
        (
            Bound("^prefill (128x128|1x1024)$", "launches and ends of pieces", _SHORT),
            Bound(
                "head_dim (64|96)", "logits, weights and values that wait for each other", _WIDTHS
            ),
            Bound("head_dim (192|256)", "the tensor cores at the power limit", _WIDTHS),
        ),
    ),
    Target(
        "chunks over 32768 keys",
        "^Prefill, other shapes: .* over ",
        (
            Bound(
                "16 over|64 over",
                "merges of parts, and the launches around",
                "chunks-over-long-contexts",
            ),
        ),
    ),
    Target(
        "mixed batches",
        "^Mixed batches:",
        (
            Bound(
                "",
                "blocks that begin late beside the other kind",
                "prompts-and-decodes-side-by-side",
            ),
        ),
    ),
    Target(
        "head_dim 512",
        "^f32, head_dim 512: .*head_dim 512",
        (Bound("decode", "memory", _WIDE),),
    ),
    Target("f32, decode", "^f32, head_dim 512: decode .*f32"),
    Target(
        "f32, prefill",
        "^f32, head_dim 512: prefill .*f32",
        (
            Bound("1x1024", "tiles that one pair of blocks has, and four launches", _F32),
            Bound("64 over", "the copy of keys and values as terms", _F32),
        ),
    ),
    Target("update_kv_cache, from 4096 tokens on", "^update_kv_cache:"),
)


def lines(results: Results, target: Target) -> Iterator[tuple[Row, str]]:
    """The target's rows, with what they ask a ratio of."""
    for row in results.rows:
        if re.search(target.lines, f"{row.case.regime}: {row.case.name}"):
            for against, asked in row.case.asked.items():
                if asked is not None:
                    yield row, against


def _numbers(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _missed(results: Results, target: Target, against: str, rows: list[Row]) -> str:
    """What binds the lines that are not met, each reason with its cases and their ratios."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        verdict = results.verdict(row, against)
        if verdict == "met":
            continue
        bound = target.bound(row.case.name)
        if verdict == AT_READ_SPEED:
            reason = "a plain read is as fast"
        elif verdict == "not measured":
            reason = verdict
        elif bound is None:
            reason = UNEXPLAINED
        else:
            reason = f"[{bound.words}]({KERNELS}#{bound.section})"
        ratio = results.ratio(row, against)
        told = row.case.name if ratio is None else f"{row.case.name} ({ratio:.4g})"
        reasons.setdefault(reason, []).append(told)
    return "; ".join(f"{reason}: {', '.join(cases)}" for reason, cases in reasons.items()) or "-"


def table(results: Results) -> list[str]:
    """A line a target and kind of ratio: what is asked, what is reached, what binds the rest."""
    found = ["| target | against | asked | reached | met | what binds the others |"]
    found += ["|---" * 6 + "|"]
    for target in TARGETS:
        asking: dict[str, list[Row]] = {}
        for row, against in lines(results, target):
            asking.setdefault(against, []).append(row)
        for against, rows in asking.items():
            ratios = [r for row in rows if (r := results.ratio(row, against)) is not None]
            met = sum(results.verdict(row, against) == "met" for row in rows)
            asked = [a for row in rows if (a := row.case.asked[against]) is not None]
            cells = [
                target.name,
                against,
                _numbers(asked),
                _numbers(ratios) if ratios else "-",
                f"{met} of {len(rows)}",
                _missed(results, target, against, rows),
            ]
            found.append("| " + " | ".join(cells) + " |")
    for step in results.steps:
        if step.get("calls") and "failed" not in step:
            ratio = step["ms"] / step["kernels_ms"]
            cells = [f"{step['layers']} calls in a jit", "their kernels", f"{CALLS_ASKED} at most"]
            cells += [f"{ratio:.3f}", f"{int(ratio <= CALLS_ASKED)} of 1", "-"]
            found.append("| " + " | ".join(cells) + " |")
    return found
