"""What was measured, as JSON that a later run goes on with; read without torch."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from peers.cases import AGAINST, Case

OURS = "ours"
READ_SPEED = 1.03  # times a plain read's time, or less: then it is reading that bounds us
AT_READ_SPEED = "not met: at the speed of a plain read"


@dataclasses.dataclass
class Measured:
    """One peer on one case: times are seconds a call; `failed` says why there are none."""

    group: str = ""  # of AGAINST; "ours"
    median: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None  # the norm of the difference from fp64 over the norm of the result
    failed: str = ""
    unsupported: bool = False  # failed says what the peer does not take


@dataclasses.dataclass
class Row:
    case: Case
    run: int  # in Results.runs
    measured: dict[str, Measured] = dataclasses.field(default_factory=dict)

    def seconds(self, name: str = OURS) -> float | None:
        found = self.measured.get(name)
        return found.median if found else None

    def ranked(self, *groups: str) -> list[tuple[float, str]]:
        """(seconds, name) of the peers of these groups, the fastest first."""
        return sorted(
            (m.median, name)
            for name, m in self.measured.items()
            if m.group in groups and m.median is not None
        )

    def best(self, against: str) -> tuple[float, str] | None:
        return next(iter(self.ranked(*AGAINST.get(against, ()))), None)

    def read(self) -> float | None:
        """Seconds of a plain read of as many bytes."""
        found = self.ranked("read")
        return found[0][0] if found else None

    def of_read(self) -> float | None:
        """A plain read's time over ours."""
        read, ours = self.read(), self.seconds()
        return None if read is None or ours is None else read / ours


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

    def ratio(self, row: Row, against: str) -> float | None:
        """The best peer's time over ours; of cases.RATES what they say."""
        ours = row.seconds()
        if ours is None:
            return None
        if against == "TFLOP/s":
            return row.case.flops() / ours / 1e12
        if against == "ceiling":
            most = self.ceiling(row, "read")
            return row.case.bytes() / ours / most if most else None
        best = row.best(against)
        return best[0] / ours if best else None

    def verdict(self, row: Row, against: str) -> str:
        """Of the ratio: met or not, what bounds it then, or why neither can be said."""
        ratio, asked = self.ratio(row, against), row.case.asked.get(against)
        if asked is None:
            return "-"
        if ratio is None:
            return "not measured"
        if ratio >= asked:
            return "met"
        share = row.of_read()
        return "not met" if share is None or share * READ_SPEED < 1 else AT_READ_SPEED

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
