"""The page of a run: a table a regime with what is asked, who is missing, and the two plots."""

from __future__ import annotations

import pathlib

from peers import plots
from peers.results import OURS, Measured, Results, Row

HOW = """\
Each peer gets the same random numbers, with pages in random order. Its calls walk over copies of
the inputs that together exceed the L2 cache several times, captured in one CUDA graph of two
milliseconds or more; the peers' graphs run by turns, fifteen times after one to warm up, timed by
CUDA events. A time is the median, in microseconds a call, and the spread is that of the fifteen.
Sustained: the second half of 0.7 s without a pause, at the power limit; such lines compare these
times. What a peer prepares for a batch (layout, plan, scheduler metadata) is not counted. Before
it is timed each result is compared with an fp64 reference on sampled rows; a wrong one is not
timed. Ratio: the best peer's time over ours. Against `paged`: peers that read pages and round as
little as we do; `any`: those that round queries or weights to fp8 too; `contiguous`: on keys and
values gathered before; `copy`: a copy of as many bytes."""


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rate(results: Results, row: Row) -> str:
    """Ours beside the ceiling that is nearer: bytes of a read or copy, or products."""
    ours = row.measured.get(OURS)
    seconds = ours.seconds(row.case.sustained) if ours else None
    if seconds is None:
        return "-"
    product = "product, sustained" if row.case.sustained else "product"
    rates = {
        "copy" if row.case.update else "read": (row.case.bytes(), "TB/s"),
        product: (row.case.flops(), "TFLOP/s"),
    }
    shares = [
        (amount / seconds / most, amount / seconds / 1e12, unit)
        for name, (amount, unit) in rates.items()
        if (most := results.ceiling(row, name))
    ]
    if not shares:
        return "-"
    share, rate, unit = max(shares)
    return f"{rate:.3g} {unit} ({100 * share:.0f}%)"


def _ours(measured: Measured | None, sustained: bool) -> tuple[str, str]:
    """Time and spread, or why there is none."""
    if measured is None:
        return "-", "-"
    if measured.median is None:
        return measured.failed.replace("|", "/"), "-"
    spread = f"{_us(measured.low)} to {_us(measured.high)}"
    return _us(measured.seconds(sustained)), spread


def _lines(results: Results, row: Row) -> list[str]:
    sustained = row.case.sustained
    ours, spread = _ours(row.measured.get(OURS), sustained)
    lines = []
    for against, asked in row.case.asked.items():
        best = row.best(against, sustained)
        name, seconds = (best[0], best[1].seconds(sustained)) if best else ("none", None)
        verdict, ratio = row.verdict(against), _number(row.ratio(against))
        cells = [
            row.case.name + (", sustained" if sustained else ""),
            against,
            name,
            _us(seconds),
            ours,
            spread,
            f"**{ratio}**" if verdict == "met" else ratio,
            _number(asked),
            verdict,
            _rate(results, row),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _failures(results: Results) -> list[str]:
    """Wrong results, and failures that are not for want of support."""
    return [
        f"- {row.case.name}: {name}: {m.failed}"
        for row in results.rows
        for name, m in row.measured.items()
        if m.failed and not m.unsupported
    ]


def _every_time(results: Results) -> list[str]:
    """All peers' medians: a line a case."""
    names = [n for n, found in results.peers.items() if "version" in found]
    lines = ["| us a call | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in results.rows:
        cells = [_us(m.median) if (m := row.measured.get(name)) else "-" for name in names]
        lines.append(f"| {row.case.name} | " + " | ".join(cells) + " |")
    return lines


def _verdicts(results: Results) -> tuple[int, int]:
    """Of the lines that ask for something: how many are met, and how many there are."""
    found = [
        row.verdict(against)
        for row in results.rows
        for against, asked in row.case.asked.items()
        if asked is not None
    ]
    return found.count("met"), len(found)


def _steps(results: Results) -> list[str]:
    if not results.steps:
        return []
    lines = [
        "",
        "## Inside XLA: a jitted decode step",
        "",
        "Milliseconds a step of benchmarks/decode_step_jax.py, the median of five runs.",
        "",
        "| attention | layers | ms |",
        "|---|---|---|",
    ]
    for step in results.steps:
        shown = step.get("failed") or f"{step['ms']:.3f}"
        lines.append(f"| {step['attention']} | {step.get('layers', '-')} | {shown} |")
    return lines


def page(results: Results) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in results.facts.items())
    met, asked = _verdicts(results)
    lines = ["# Paged attention beside its peers", "", f"Made by `make bench-gpu`: {facts}.", ""]
    for number, run in enumerate(results.runs):
        found = [f"{n} {most / 1e12:.3g}" for n, most in run["ceilings"].items()]
        words = "TB/s of read and copy, TFLOP/s of an 8192^3 bf16 product"
        lines.append(f"Ceilings of run {number} ({words}): {', '.join(found)}.")
    lines += ["", f"{met} of the {asked} lines that ask for a ratio reach it.", ""]
    lines += ["![ratio to the best peer](ratio.svg)", "", "![roofline](roofline.svg)"]
    for regime in dict.fromkeys(row.case.regime for row in results.rows):
        lines += ["", f"## {regime}", ""]
        lines += ["| case | against | best peer | its us | ours us | spread | ratio | asked | |"]
        lines[-1] += " ours (of the ceiling) |"
        lines += ["|---" * 10 + "|"]
        for row in results.rows:
            if row.case.regime == regime:
                lines += _lines(results, row)
    lines += _steps(results)
    lines += ["", "## Peers", ""]
    lines += [
        f"- {name}: {found['version']}" if "version" in found else f"- {name}: missing: {why}"
        for name, found in results.peers.items()
        for why in [found.get("missing", "")]
    ]
    lines += ["", "## Every time", "", *_every_time(results)]
    failures = _failures(results)
    lines += ["", "## Failed", "", *failures] if failures else []
    return "\n".join([*lines, "", "## How it is timed", "", HOW, ""])


def write(folder: pathlib.Path, results: Results) -> None:
    """README.md and the plots; results.json is beside them."""
    (folder / "README.md").write_text(page(results))
    (folder / "ratio.svg").write_text(plots.ratios(results))
    (folder / "roofline.svg").write_text(plots.roofline(results))
