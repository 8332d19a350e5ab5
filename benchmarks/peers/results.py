"""What was measured, as JSON that a later run goes on with; read without torch."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from peers.cases import AGAINST, Case

OURS = "ours"


@dataclasses.dataclass
class Measured:
    """One peer on one case: times are seconds a call; `failed` says why there are none."""

    group: str = ""  # of AGAINST; "ours"
    median: float | None = None
    low: float | None = None
    high: float | None = None
    sustained: float | None = None
    error: float | None = None  # the norm of the difference from fp64 over the norm of the result
    failed: str = ""
    unsupported: bool = False  # failed says what the peer does not take

    def seconds(self, sustained: bool) -> float | None:
        return self.sustained if sustained else self.median


@dataclasses.dataclass
class Row:
    case: Case
    run: int  # in Results.runs
    measured: dict[str, Measured] = dataclasses.field(default_factory=dict)

    def best(self, against: str, sustained: bool) -> tuple[str, Measured] | None:
        """The fastest peer of the group, ours left out."""
        found = [
            (seconds, name, m)
            for name, m in self.measured.items()
            if m.group in AGAINST[against] and (seconds := m.seconds(sustained)) is not None
        ]
        return min(found, key=lambda f: f[0])[1:] if found else None

    def ratio(self, against: str) -> float | None:
        """The best peer's time over ours."""
        ours, best = self.measured.get(OURS), self.best(against, self.case.sustained)
        mine = ours.seconds(self.case.sustained) if ours else None
        theirs = best[1].seconds(self.case.sustained) if best else None
        return None if mine is None or theirs is None else theirs / mine

    def verdict(self, against: str) -> str:
        """Of the ratio: met or not, or why neither can be said."""
        ratio, asked = self.ratio(against), self.case.asked.get(against)
        if ratio is None:
            return "not measured" if asked else "-"
        return "-" if asked is None else "met" if ratio >= asked else "not met"


@dataclasses.dataclass
class Results:
    """`peers` by name: the version, or why it is missing."""

    facts: dict[str, Any]
    peers: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    rows: list[Row] = dataclasses.field(default_factory=list)
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # [case, peer] that is being prepared; where that ended the process the next run leaves it out.
    trying: list[str] | None = None
    killers: list[list[str]] = dataclasses.field(default_factory=list)

    def row(self, case: Case) -> Row | None:
        return next((row for row in self.rows if row.case == case), None)

    def ceiling(self, row: Row, name: str) -> float | None:
        return self.runs[row.run]["ceilings"].get(name)

    def save(self, path: pathlib.Path) -> None:
        """A line a row; a file is never left half written."""
        plain = dataclasses.asdict(self)
        lines = [
            f"{json.dumps(key)}: "
            + (
                "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"
                if isinstance(value, list) and key not in ("trying", "killers")
                else json.dumps(value)
            )
            for key, value in plain.items()
        ]
        part = path.with_suffix(".part")
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        part.replace(path)


def load(path: pathlib.Path) -> Results:
    plain = json.loads(path.read_text())
    rows = plain.pop("rows")
    found = Results(**plain)
    for row in rows:
        case = row["case"]
        for name in ("queries", "contexts"):
            case[name] = tuple(case[name])
        measured = {name: Measured(**m) for name, m in row["measured"].items()}
        found.rows.append(Row(Case(**case), row["run"], measured))
    return found
