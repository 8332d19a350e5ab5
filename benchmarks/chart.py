"""A bar chart as SVG: one panel a problem, ours in colour, ceilings as lines with their values."""

from __future__ import annotations

import dataclasses
import html
import pathlib

WIDTH, NAMES, BAR, GAP, TITLE, FOOT = 760, 170, 15, 5, 48, 20
PLOT = WIDTH - NAMES - 130  # what a full bar takes; the rest is for its value
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
text.title { font-weight: 600 } .name { text-anchor: end }
.paper { fill: #ffffff } .peer { fill: #b6bec7 } .ours { fill: #0969da }
.in-ours { fill: #ffffff; text-anchor: end; font-weight: 600 } .in-peer { text-anchor: end }
.ceiling { stroke: #bc4c00; stroke-dasharray: 5 3 }
.ceiling-value { fill: #bc4c00; font-size: 12px }
.note { fill: #59636e; font-weight: 400 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .note { fill: #9198a1 } .paper { fill: #0d1117 } .peer { fill: #565e68 }
  .ours { fill: #1f6feb } .ceiling { stroke: #f0883e } .ceiling-value { fill: #f0883e }
}
"""


@dataclasses.dataclass
class Panel:
    """Rates of one problem, `None` where it does not run, and what bounds them."""

    title: str
    unit: str
    rates: dict[str, float | None]
    ceilings: dict[str, float]


def text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{html.escape(words)}</text>'


def _panel(panel: Panel, top: float) -> tuple[list[str], float]:
    """The panel's elements and where the next one begins."""
    most = max([r for r in panel.rates.values() if r] + list(panel.ceilings.values()))
    scale = PLOT / most
    height = len(panel.rates) * (BAR + GAP)
    words = text(12, top + 16, "title", panel.title)
    unit = f'<tspan dx="14" class="note">{html.escape(panel.unit)}; longer is better</tspan>'
    lines = [words.replace("</text>", f"{unit}</text>")]
    for number, (name, rate) in enumerate(sorted(panel.ceilings.items(), key=lambda c: -c[1])):
        # Two ceilings may be near each other: the lower one's words go below the bars.
        x, below = NAMES + rate * scale, number > 0
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + TITLE - 8}" '
            f'y2="{top + TITLE + height}" class="ceiling"/>'
        )
        y = top + TITLE + height + 13 if below else top + TITLE - 13
        words = text(x, y, "ceiling-value", f"{name}: {rate:.3g}")
        lines.append(words.replace("class", 'text-anchor="middle" class', 1))
    for number, (name, rate) in enumerate(panel.rates.items()):
        y = top + TITLE + number * (BAR + GAP)
        kind = "ours" if name.startswith("ours") else "peer"
        width = (rate or 0.0) * scale
        inside = width > 60
        lines += [
            text(NAMES - 8, y + 12, "name", name),
            f'<rect x="{NAMES}" y="{y}" width="{width:.1f}" height="{BAR}" class="{kind}"/>',
            text(
                NAMES + width + (-6 if inside else 6),
                y + 12,
                f"in-{kind}" if inside else "value",
                f"{rate:.3g}" if rate else "does not run",
            ),
        ]
    return lines, top + TITLE + height + FOOT


def write(path: pathlib.Path, panels: list[Panel]) -> None:
    elements, top = [], 8.0
    for panel in panels:
        lines, top = _panel(panel, top)
        elements += lines
    path.write_text(document(WIDTH, top, elements))


def document(width: float, height: float, elements: list[str], style: str = "") -> str:
    """The file's text; `style`: CSS beside STYLE."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size}>',
        f"<style>{STYLE}{style}</style>",
        f'<rect {size} class="paper"/>',
        *elements,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
