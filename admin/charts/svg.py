"""Writes the SVG elements that a chart has for each of its points: bars, tooltips, and the rows of its
table.

There are hundreds of them, which a template would escape one by one. `templates/charts.html` writes the
frame around them, and `admin.charts.layout` computes the positions. Every text is escaped here; numbers are
written by formats that accept nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from markupsafe import Markup

from admin.charts.layout import ACROSS, Bar, Chart, Spot

_LONGEST_NAME = 22


def bars(chart: Chart) -> Markup:
    """One path for each tone, in a box `ACROSS` wide."""
    by_tone: dict[str, list[str]] = {}
    for bar in chart.bars:
        by_tone.setdefault(bar.tone, []).append(_outline(bar))
    return Markup(
        "".join(
            f'<path class="{escape(tone)}" d="{"".join(lines)}"></path>' for tone, lines in by_tone.items()
        )
    )


def _outline(bar: Bar) -> str:
    left, width = bar.x * ACROSS / 100, bar.width * ACROSS / 100
    return f"M{left:g} {bar.y:g}h{width:g}v{bar.height:g}h{-width:g}z"


def spots(chart: Chart) -> Markup:
    """What shows itself when a place is pointed at or comes into focus."""
    return Markup("\n".join(_spot(spot, chart.height) for spot in chart.spots))


def _spot(spot: Spot, height: int) -> str:
    title, middle = escape(spot.title), f"{spot.middle:g}%"
    rows = []
    for place, (tone, name, value) in enumerate(spot.rows, 1):
        y, key, x = 22 + 19 * place, "", 12
        if tone:
            key, x = f'<rect class="{escape(tone)}" y="{y - 9}"></rect>', 27
        rows.append(
            f'{key}<text x="{x}" y="{y}">{escape(_cut(name))}</text>'
            f'<text class="value" x="208" y="{y}">{escape(value)}</text>'
        )
    begin, end = '<g class="spot">', "</g>"
    if spot.href:
        begin = f'<a class="spot" href="{escape(spot.href)}" aria-label="{escape(spot.words)}">'
        end = "</a>"
    side, edge = ("right", "100%") if spot.is_left else ("left", "0")
    return (
        f'{begin}<rect class="hit" x="{spot.x:g}%" y="0" width="{spot.width:g}%" height="{height:d}"></rect>'
        f'<line class="hair" x1="{middle}" x2="{middle}" y1="0" y2="{height:d}"></line>'
        f'<svg class="tip {side}" x="{edge}" height="{spot.height:d}" aria-hidden="true"><g>'
        f'<rect class="ground" height="{spot.height:d}"></rect>'
        f'<text class="title" x="12" y="21">{title}</text>{"".join(rows)}</g></svg>{end}'
    )


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def rows(chart: Chart) -> Markup:
    """Of the table that has the same figures."""
    return Markup("\n".join(_row(*row) for row in chart.rows))


def _row(title: str, *figures: str) -> str:
    cells = "".join(f'<td class="number">{escape(figure)}</td>' for figure in figures)
    return f'<tr><th scope="row">{escape(title)}</th>{cells}</tr>'


FILTERS: dict[str, Callable[[Chart], Markup]] = {"bars": bars, "spots": spots, "table_rows": rows}
