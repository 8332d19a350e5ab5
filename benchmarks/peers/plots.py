"""The plots of a run as SVG: a heat map of ratios, and a roofline."""

from __future__ import annotations

import html
import math

import chart

from peers.cases import AGAINST
from peers.results import OURS, Results, Row

COLUMNS, CELL, HEIGHT, LEFT = 5, 172, 40, 12
WIDTH = 2 * LEFT + COLUMNS * CELL
STYLE = """
.cell { font-size: 11px; fill: #1f2328 } .cell-ratio { font-weight: 600; fill: #1f2328 }
.met { stroke: #1f2328; stroke-width: 2 } .unmet { stroke: #ffffff; stroke-width: 1 }
.point-ours { fill: #0969da } .point-peer { fill: #8c959f } .axis { stroke: #8c959f }
.grid { stroke: #8c959f; stroke-opacity: 0.25 } .tick { font-size: 11px }
.roof { stroke: #bc4c00; fill: none; stroke-width: 2 }
"""
SLOW, EVEN, FAST = (232, 120, 92), (244, 240, 225), (92, 176, 116)


def _colour(ratio: float | None) -> str:
    """Half as fast and slower: SLOW; half as fast again and faster: FAST; even in the middle."""
    if ratio is None:
        return "#c8ccd1"
    at = max(-1.0, min(1.0, math.log(ratio) / math.log(1.5)))
    end = FAST if at > 0 else SLOW
    mixed = (round(e + (x - e) * abs(at)) for e, x in zip(EVEN, end))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _short(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"


def _cell(results: Results, row: Row, against: str, x: float, y: float) -> list[str]:
    ratio, asked = results.ratio(row, against), row.case.asked[against]
    verdict = results.verdict(row, against)
    words = "-" if ratio is None else f"{ratio:.2f}"
    if asked is not None:
        words += f" of {asked:.2f}"
    if against != "paged":
        words += f", {against}"
    kind = "met" if verdict == "met" else "unmet"
    title = html.escape(row.case.name)
    return [
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 4}" height="{HEIGHT - 4}" '
        f'fill="{_colour(ratio)}" class="{kind}"><title>{title}</title></rect>',
        chart.text(x + 7, y + 15, "cell", _short(row.case.name)),
        chart.text(x + 7, y + 31, "cell-ratio", words),
    ]


def ratios(results: Results) -> str:
    """A block a regime, a cell a case: the ratio to the best peer, of what is asked."""
    y = 24.0
    elements = [chart.text(LEFT, y, "title", "The best peer's time over ours, of what is asked")]
    note = "green: ours is faster; red: slower; grey: not measured; framed: as asked"
    elements.append(chart.text(LEFT, y + 18, "note", note))
    y += 34
    for regime in dict.fromkeys(row.case.regime for row in results.rows):
        elements.append(chart.text(LEFT, y + 14, "title", regime))
        y += 20
        cells = [
            (row, against)
            for row in results.rows
            if row.case.regime == regime
            for against in row.case.asked
            if against in AGAINST
        ]
        for number, (row, against) in enumerate(cells):
            column, line = number % COLUMNS, number // COLUMNS
            elements += _cell(results, row, against, LEFT + column * CELL, y + line * HEIGHT)
        y += -(-len(cells) // COLUMNS) * HEIGHT + 8
    return chart.document(WIDTH, y + 8, elements, STYLE)


class _Axes:
    """Two logarithmic axes over these ranges."""

    LEFT, TOP, WIDTH, HEIGHT = 70, 50, 780, 400

    def __init__(self, xs: list[float], ys: list[float]) -> None:
        def ends(values: list[float]) -> tuple[int, int]:
            low = math.floor(math.log10(min(values)))
            return low, max(low + 1, math.ceil(math.log10(max(values))))

        self.x, self.y = ends(xs), ends(ys)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0])
        return self.LEFT + across * self.WIDTH, self.TOP + (1 - up) * self.HEIGHT

    def lines(self) -> list[str]:
        bottom, found = self.TOP + self.HEIGHT, []
        for power in range(self.x[0], self.x[1] + 1):
            x, _ = self.at(10.0**power, 10.0 ** self.y[0])
            found.append(f'<path d="M{x:.1f} {self.TOP}V{bottom}" class="grid"/>')
            found.append(chart.text(x - 8, bottom + 18, "tick", f"{10.0**power:g}"))
        for power in range(self.y[0], self.y[1] + 1):
            _, y = self.at(10.0 ** self.x[0], 10.0**power)
            found.append(f'<path d="M{self.LEFT} {y:.1f}H{self.LEFT + self.WIDTH}" class="grid"/>')
            found.append(chart.text(20, y + 4, "tick", f"{10.0**power:g}"))
        return found


def roofline(results: Results) -> str:
    """TFLOP/s over FLOP a byte of the cache, under what this machine reads and multiplies."""
    points = []
    for row in results.rows:
        amount = row.case.flops()
        best = row.best("paged")
        for kind, name in (("peer", best[1] if best else ""), ("ours", OURS)):
            m = row.measured.get(name)
            if amount and m is not None and m.median is not None:
                rate = amount / m.median / 1e12
                points.append((amount / row.case.bytes(), rate, kind, row.case.name, m.median))
    title = chart.text(12, 24, "title", "TFLOP/s over FLOP a byte of keys and values")
    words = (
        "blue: ours; grey: the best peer; lines: read bandwidth and bf16 product of the same run"
    )
    elements = [title, chart.text(12, 42, "note", words)]
    width = _Axes.LEFT + _Axes.WIDTH + 30
    height = _Axes.TOP + _Axes.HEIGHT + 40
    if not points:
        return chart.document(width, height, elements, STYLE)
    most = {n: max(r["ceilings"][n] for r in results.runs) / 1e12 for n in ("read", "product")}
    xs = [x for x, *_ in points] + [most["product"] / most["read"]]
    axes = _Axes(xs, [y for _, y, *_ in points] + [most["product"]])
    elements += axes.lines()
    knee = most["product"] / most["read"]
    low = max(10.0 ** axes.x[0], 10.0 ** axes.y[0] / most["read"])
    roof = [
        axes.at(low, low * most["read"]),
        axes.at(knee, most["product"]),
        axes.at(10.0 ** axes.x[1], most["product"]),
    ]
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in roof)
    elements.append(f'<path d="M{path}" class="roof"/>')
    for x, y, kind, name, seconds in points:
        across, down = axes.at(x, y)
        tip = html.escape(f"{kind}, {name}: {seconds * 1e6:.1f} us, {y:.3g} TFLOP/s")
        elements.append(
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" class="point-{kind}">'
            f"<title>{tip}</title></circle>"
        )
    return chart.document(width, height, elements, STYLE)
