"""The page of a run: a table a regime with what is asked, who is missing, and the two plots."""

from __future__ import annotations

import pathlib

from peers import plots, targets
from peers.cases import RATES
from peers.results import AT_READ_SPEED, OURS, Results, Row

HOW = """\
Each peer gets the same random numbers, with pages in random order. Its calls walk over copies of
the inputs that together exceed the L2 cache several times, captured in one CUDA graph of two
milliseconds or more; the peers' graphs run by turns, each round in another order, fifteen times
after one to warm up, timed by CUDA events. A time is the median, in microseconds a call, and the
spread is that of the fifteen. Sustained: the second half of 0.5 s without a pause, at the power
limit, three times (before December 2026: of 0.7 s, once, ours first). What a peer prepares for a
batch (layout, plan, scheduler metadata) is not counted. Before it is timed each result is compared
with an fp64 reference on sampled rows; a wrong one is not timed. Ratio: the best peer's time over
ours. Against `paged`: peers that read pages and round as little as we do; `any`: those that round
queries or weights to fp8 too; `contiguous`: on keys and values gathered before; `copy`: a copy of
as many bytes; `own`: our own call without what the case has besides (over bf16 instead of fp8;
without the soft cap, batch_invariant, or the odd beginning of the cache). `ceiling`: our bytes a
second over those that this machine reads at most; `TFLOP/s`: our own, as asked.

A plain read: a kernel that does nothing but add up as many bytes that lie in a row (the faster of
two grids), timed by turns with the others, for what memory bounds. Its share is its time over ours,
and behind it stands the ratio that a call of its speed would have. Where ours takes at most 3%
longer, a line that is not met says so."""

TARGETS = """\
Ratios are those of the lines below. A reason links to the section with its measurement and what
was tried, on an H200 unless that says otherwise; unexplained: no section says what binds it."""

COLUMNS = [
    "case",
    "against",
    "best peer",
    "its us",
    "ours us",
    "spread",
    "ratio",
    "asked",
    "verdict",
]
COLUMNS += ["plain read us (its share, ratio)", "ours (of the ceiling)", "others, us"]


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rate(results: Results, row: Row) -> str:
    """Ours beside the ceiling that is nearer: bytes of a read or copy, or products."""
    seconds = row.seconds()
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


def _cell(words: str) -> str:
    return words.replace("|", "/")


def _read(row: Row, against: str) -> str:
    """A plain read's time, its share of ours, and the ratio that it would have."""
    read, share, best = row.read(), row.of_read(), row.best(against)
    if read is None or share is None:
        return "-"
    reached = f", {best[0] / read:.2f}" if best else ""
    return f"{_us(read)} ({100 * share:.0f}%{reached})"


def _others(row: Row, best: str) -> str:
    """Everyone else's time."""
    ranked = row.ranked("ours", "paged", "rounded", "contiguous", "copy", "own")
    return "; ".join(f"{name} {_us(s)}" for s, name in ranked if name not in (OURS, best)) or "-"


def _lines(results: Results, row: Row) -> list[str]:
    ours, lines = row.measured.get(OURS), []
    for against, asked in row.case.asked.items():
        seconds, name = row.best(against) or (None, "-" if against in RATES else "none")
        verdict, ratio = results.verdict(row, against), _number(results.ratio(row, against))
        first = not lines  # what the others do not say again
        spread = f"{_us(ours.low)} to {_us(ours.high)}" if ours and ours.median else "-"
        cells = [
            row.case.name + (", sustained" if row.case.sustained else ""),
            against,
            name,
            _us(seconds),
            _us(row.seconds()) if ours is None or not ours.failed else _cell(ours.failed),
            spread,
            f"**{ratio}**" if verdict == "met" else ratio,
            _number(asked),
            verdict,
            _read(row, against),
            _rate(results, row) if first else "",
            _others(row, name) if first else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _failures(results: Results) -> list[str]:
    """Wrong results, and failures that are not for want of support: a line a peer and message."""
    cases: dict[tuple[str, str], list[str]] = {}
    for row in results.rows:
        for name, m in row.measured.items():
            if m.failed and not m.unsupported:
                cases.setdefault((name, m.failed), []).append(row.case.name)
    return [
        f"- {name}, {some[0] if len(some) == 1 else f'{len(some)} cases'}: {_cell(failed)}"
        for (name, failed), some in cases.items()
    ]


def _verdicts(results: Results) -> list[str]:
    """Of the lines that ask for something."""
    return [
        results.verdict(row, against)
        for row in results.rows
        for against, asked in row.case.asked.items()
        if asked is not None
    ]


def _from_ours(step: dict, ours: dict | None) -> str:
    """How far the step's hidden state is from ours, over its norm."""
    if ours is None or "first" not in step:
        return "-"
    squares = sum((a - b) ** 2 for a, b in zip(step["first"], ours["first"], strict=True))
    return f"{(squares / sum(b * b for b in ours['first'])) ** 0.5:.1g}"


def _calls(step: dict) -> str:
    jitted, kernels = step["ms"], step["kernels_ms"]
    words = f"{step['layers']} calls in a jit take {jitted:.3f} ms, in a CUDA graph of torch's"
    share = f"{jitted / kernels:.3f} of their kernels"
    return f"{words} {kernels:.3f}: {share}, {targets.CALLS_ASKED} is asked."


def _inside(step: dict) -> str:
    """Whose versions, and whether its calls of ours came out of command buffers."""
    said = [f"{name} {version}" for name, version in step.get("versions", {}).items()]
    if step.get("xla_flags"):
        said.append(f"XLA_FLAGS={step['xla_flags']}")
    if step.get("host_calls") is not None:
        said.append(f"{step['host_calls']} of our calls made by the host")
    return ", ".join(said) or "-"


def _steps(results: Results) -> list[str]:
    """Of decode_step_jax.py: whole steps, then calls alone."""
    lines: list[str] = []
    steps = [step for step in results.steps if not step.get("calls")]
    if steps:
        ours = next((s for s in steps if s["attention"] == OURS and "first" in s), None)
        lines += ["", "## Inside XLA: a jitted decode step", ""]
        lines += [
            "Milliseconds a step of benchmarks/decode_step_jax.py, the median of five runs. Of a",
            "step in XLA's command buffers (its default) the host makes none of our calls.",
            "",
        ]
        lines += ["| attention | layers | ms | differs from ours by | with |", "|---" * 5 + "|"]
    for step in steps:
        shown = _cell(step["failed"]) if "failed" in step else f"{step['ms']:.3f}"
        cells = [step["attention"], str(step.get("layers", "-")), shown, _from_ours(step, ours)]
        cells.append(_cell(_inside(step)) + (f", run {step['run']}" if step.get("run") else ""))
        lines.append("| " + " | ".join(cells) + " |")
    for step in results.steps:
        if not step.get("calls"):
            continue
        shown = _cell(step["failed"]) if "failed" in step else _calls(step)
        lines += ["", f"Its attention alone (`--calls`), {step['attention']}: {shown}"]
        lines[-1] += f" With {_inside(step)}." * ("versions" in step)
    return lines


def page(results: Results) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in results.facts.items())
    verdicts = _verdicts(results)
    lines = ["# Paged attention beside its peers", "", f"Made by `make bench-gpu`: {facts}.", ""]
    for number, run in enumerate(results.runs):
        found = [f"{n} {most / 1e12:.3g}" for n, most in run["ceilings"].items()]
        words = "TB/s of read and copy, TFLOP/s of an 8192^3 bf16 product"
        lines.append(f"Ceilings of run {number} ({words}): {', '.join(found)}.")
        if "commit" in run:
            lines[-1] += f" Commit {run['commit']}, options `{run['options'] or 'none'}`."
    met, bound = (verdicts.count(verdict) for verdict in ("met", AT_READ_SPEED))
    lines += ["", f"{met} of the {len(verdicts)} lines that ask for a ratio reach it."]
    lines += [f"Of the others {bound} run at the speed of a plain read of as many bytes."] * bool(
        bound
    )
    lines += [""]
    lines += ["![ratio to the best peer](ratio.svg)", "", "![roofline](roofline.svg)"]
    lines += ["", "## Targets", "", *targets.table(results), "", TARGETS]
    for regime in dict.fromkeys(row.case.regime for row in results.rows):
        lines += ["", f"## {regime}", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
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
    failures = _failures(results)
    lines += ["", "## Failed", "", *failures] if failures else []
    return "\n".join([*lines, "", "## How it is timed", "", HOW, ""])


def write(folder: pathlib.Path, results: Results) -> None:
    """README.md and the plots; results.json is beside them."""
    (folder / "README.md").write_text(page(results))
    (folder / "ratio.svg").write_text(plots.ratios(results))
    (folder / "roofline.svg").write_text(plots.roofline(results))
