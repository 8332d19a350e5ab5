"""What cpu.py writes: its results as JSON, the page with their tables, and the chart."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics

import chart
import cpu_scaling
from workloads import Mixed, Problem

OURS, TORCH, FLEX = "ours, paged", "torch SDPA", "torch flex_attention"
JNP = "jnp, paged"
# Ceilings: of decode, of decode, of prefill.
READ, ARITHMETIC, PRODUCT = "memory, read", "arithmetic, pages in L2", "XLA's f32 product"


def unit(p: Problem) -> str:
    if isinstance(p, Mixed):
        return "calls a second"
    return "GFLOP/s" if p.prefill else "GB/s of keys and values"


def by_problem(rows: list[dict[str, object]]) -> dict[Problem, list[dict[str, object]]]:
    """The rows of each problem, one a run."""
    found: dict[Problem, list[dict[str, object]]] = {}
    for row in rows:
        found.setdefault(row["problem"], []).append(row)
    return found


def table(rows: list[dict[str, object]]) -> list[str]:
    """A line a problem, a column a competitor: its rate, how many times as fast ours is, errors."""
    lines = []
    for kind in dict.fromkeys(unit(row["problem"]) for row in rows):
        chosen = [row for row in rows if unit(row["problem"]) == kind]
        names = list(dict.fromkeys(name for row in chosen for name in row["rates"]))
        limits = list(chosen[0]["ceilings"])
        header = [kind, *names, *(f"ceiling: {name}" for name in limits)]
        lines += ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
        for problem, runs in by_problem(chosen).items():
            cells = [str(problem), *(_cell(runs, name) for name in names)]
            for name in limits:
                found = [row["ceilings"][name] for row in runs]
                cells.append(
                    f"{_each('{:.3g}', found)} (ours: {_each('{:.0%}', _shares(runs, name))})"
                )
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _each(form: str, numbers: list[float]) -> str:
    return ", ".join(map(form.format, numbers))


def _medians(runs: list[dict[str, object]], kind: str) -> dict[str, float]:
    """Of the numbers by name that rows have under `kind`."""
    return {name: statistics.median(row[kind][name] for row in runs) for name in runs[0][kind]}


def _shares(runs: list[dict[str, object]], ceiling: str) -> list[float]:
    """What ours reached of a ceiling in each run."""
    return [row["rates"][OURS] / row["ceilings"][ceiling] for row in runs]


def _cell(runs: list[dict[str, object]], name: str) -> str:
    if any(name not in row["rates"] for row in runs):
        return "-"
    rates = [row["rates"][name] for row in runs]
    error = f"error {max(row['errors'][name] for row in runs):.0e}"
    if name == OURS:
        return f"**{_each('{:.3g}', rates)}**, {error}"
    ours = statistics.median(row["rates"][OURS] / row["rates"][name] for row in runs)
    return f"{statistics.median(rates):.3g} (ours: {ours:.1f}x), {error}"


@dataclasses.dataclass
class Asked:
    """One thing that is asked of a problem's speed, and what each run reached of it."""

    what: str
    least: float
    form: str  # of the numbers
    reached: list[float]


def asked(
    p: Problem, found: dict[Problem, list[dict[str, object]]], machine: str, cores: int
) -> list[Asked]:
    """What is asked of a problem of `found` on so many cores with the instructions of `machine`."""
    ours = [row["rates"][OURS] for row in found[p]]
    if isinstance(p, Mixed):
        return []
    if p.prefill:
        least = {"float32": 1.3}
        if "avx512_bf16" in machine:
            least["bfloat16"] = 1.1 if "amx_bf16" in machine else 2.0
        sdpa = [[r for n, r in row["rates"].items() if n.startswith(TORCH)] for row in found[p]]
        if p.dtype not in least or not all(sdpa):
            return []
        times = [one / max(peers) for one, peers in zip(ours, sdpa, strict=True)]
        return [Asked("of torch SDPA's speed", least[p.dtype], "{:.2f}x", times)]
    if p.dtype in ("bfloat16", "float16"):
        return [Asked("of the read bandwidth", 0.85, "{:.0%}", _shares(found[p], READ))]
    if p.dtype.startswith("float8"):
        lines = [Asked("GB/s a core", 20.0, "{:.3g}", [one / cores for one in ours])]
        wide = found.get(dataclasses.replace(p, dtype="bfloat16"), [])
        times = [2 * one / row["rates"][OURS] for one, row in zip(ours, wide, strict=False)]
        if times:
            lines.append(Asked("of bfloat16's tokens a second", 1.6, "{:.2f}x", times))
        return lines
    return []


def asked_table(rows: list[dict[str, object]], machine: str, cores: int) -> list[str]:
    """A line a thing asked: the least, each run, in how many runs it is met, and what binds."""
    lines = []
    found = by_problem(rows)
    for problem, runs in found.items():
        for thing in asked(problem, found, machine, cores):
            met = sum(one >= thing.least for one in thing.reached)
            cells = [
                f"{problem}, {thing.what}",
                thing.form.format(thing.least),
                _each(thing.form, thing.reached),
                f"{met} of {len(thing.reached)}",
                _bound(runs),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    header = ["asked of ours", "at least", "reached, run by run", "met", "what binds"]
    return lines and ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|", *lines]


def _bound(runs: list[dict[str, object]]) -> str:
    """The lower of the ceilings of a decode, and what ours reached of it in each run."""
    limits = _medians(runs, "ceilings")
    if len(limits) < 2:
        return "-"
    name = min(limits, key=limits.__getitem__)
    return f"{name} (ours: {_each('{:.0%}', _shares(runs, name))})"


def save(
    folder: pathlib.Path, facts: dict[str, object], rows: list[dict[str, object]], name: str = "cpu"
) -> None:
    """JSON, table and chart."""
    plain = [row | {"problem": dataclasses.asdict(row["problem"])} for row in rows]
    (folder / f"{name}.json").write_text(json.dumps(facts | {"rows": plain}, indent=1) + "\n")
    lines = [
        "# Speed on the CPU",
        "",
        "Made by `make bench`. 32 query heads, 8 kv heads, head_dim 128, pages of 16 tokens in "
        "random order.",
        f"Machine: {facts['machine']}; jax {facts['jax']}, torch {facts['torch']}"
        + (f"; commit {facts['commit']}." if "commit" in facts else "."),
        "",
        f"![speed on the CPU]({name}.svg)",
        *table(rows),
        *asked_table(rows, facts["machine"], facts["cores"]),
        *cpu_scaling.table(facts.get("scaling", [])),
        "",
        facts["how"],
        "",
        *_overhead(facts["overhead_us"]),
    ]
    (folder / f"{name}.md").write_text("\n".join(lines))
    # To be read at a glance: the last problem of each kind and of three types.
    shown = {
        (problem.prefill, problem.dtype): (problem, runs)
        for problem, runs in by_problem(rows).items()
        if problem.dtype in ("float32", "bfloat16", "float8_e4m3fn")
        and not isinstance(problem, Mixed)
    }
    panels = [
        chart.Panel(
            problem.title(), unit(problem), _medians(runs, "rates"), _medians(runs, "ceilings")
        )
        for problem, runs in shown.values()
    ]
    chart.write(folder / f"{name}.svg", panels)


def _overhead(found: dict[str, float]) -> list[str]:
    rows = [f"| {name} | {us:.2f} |" for name, us in found.items()]
    return ["| call overhead | median, us |", "|---|---|", *rows, ""] if rows else []


def load(path: pathlib.Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    facts = json.loads(path.read_text())
    rows = facts.pop("rows")
    for row in rows:
        row["problem"] = (Mixed if "prompt" in row["problem"] else Problem)(**row["problem"])
    return facts, rows
