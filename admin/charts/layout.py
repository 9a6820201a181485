"""Lays out charts over time for the templates: stacked bars, lines, and sparklines.

    layout.bars("Tokens by day", points, [Series("Input", "input", values), ...], COUNT)

returns what `templates/charts.html` draws (`charts.figure`), styled by `static/charts.css`: an axis, a
legend, a tooltip for each point, and the same values as a table for screen readers. Horizontal positions are
per cent of the chart's width, so that its text stays legible on a telephone. It needs no script.

`admin.charts.svg` and the template write the markup. A `Unit` formats values, and colours are roles (`tone`)
which the style sheet defines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from admin import formatting

TONES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
"""For series that have no colour of their own, in this order; `rest` is for what is added up behind them.
Besides, the sheet knows `input`, `cached`, `output`, `good` and `bad`.
"""
HEIGHT = 200
"""Of the plot, in pixels; so are all distances up and down."""
_TOP = 10
_MAX_MARKS = 8
_WIDEST_BAR = 5.0
_FILLED = 0.74
ACROSS = 1000
"""Units across the plot of a path."""
_TIP_ROWS = 9


@dataclass(frozen=True, slots=True)
class Point:
    """A place on the axis of time."""

    tick: str
    """Beneath the axis: short."""
    title: str
    """In full."""
    href: str | None = None
    """Where pointing and clicking leads."""


@dataclass(frozen=True, slots=True)
class Series:
    """A value for every point; None: not known."""

    name: str
    tone: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """How values are put into words."""

    exact: Callable[[float | None], str]
    rough: Callable[[float | None], str]
    """On the axis."""
    is_whole: bool = False
    """There is nothing between 1 and 2."""


COUNT = Unit(formatting.count, formatting.compact, is_whole=True)
USD = Unit(formatting.usd, formatting.usd_roughly)


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    y: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Path:
    tone: str
    line: str
    dots: list[tuple[float, float]]
    """Values that no line leads to, as (per cent, pixels)."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Beneath the axis."""

    x: float
    text: str
    anchor: str
    is_minor: bool
    """Left out where there is little room."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The tooltip of a point."""

    x: float
    width: float
    title: str
    rows: list[tuple[str, str, str]]
    """Tone, name, value."""
    href: str | None

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 3)

    @property
    def is_left(self) -> bool:
        return self.middle < 50

    @property
    def height(self) -> int:
        return 34 + 19 * len(self.rows)

    @property
    def words(self) -> str:
        return f"{self.title}: " + ", ".join(f"{value} {name}".strip() for _, name, value in self.rows)


@dataclass(frozen=True, slots=True)
class Chart:
    """All that the template draws."""

    caption: str
    legend: list[tuple[str, str]]
    """(tone, name)."""
    ticks: list[tuple[float, str]]
    """(pixels down, words) along the axis of values."""
    floor: float
    """Where 0 is."""
    marks: list[Mark]
    spots: list[Spot]
    head: list[str]
    rows: list[list[str]]
    bars: list[Bar] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    is_empty: bool = False
    """Nothing but zeros."""
    height: int = HEIGHT

    @property
    def is_linked(self) -> bool:
        return any(spot.href for spot in self.spots)


@dataclass(frozen=True, slots=True)
class Spark:
    """A line without words: the figure beside it has them. In a box of 100 by 30."""

    line: str
    area: str
    tone: str


def bars(caption: str, points: Sequence[Point], series: Sequence[Series], unit: Unit) -> Chart:
    """The series of each point on top of each other; what is below 0, beneath."""
    columns = [[one.values[at] or 0 for one in series] for at in range(len(points))]
    tops = [sum(value for value in column if value > 0) for column in columns]
    bottoms = [sum(value for value in column if value < 0) for column in columns]
    scale = _Scale(min(bottoms, default=0), max(tops, default=0), unit)
    slot = 100 / max(1, len(points))
    width = min(slot * _FILLED, _WIDEST_BAR)
    drawn = []
    for at, column in enumerate(columns):
        x = round(slot * (at + 0.5) - width / 2, 3)
        above = below = 0.0
        for one, value in zip(series, column, strict=True):
            if not value:
                continue
            start = above if value > 0 else below
            top, bottom = sorted((scale.y(start), scale.y(start + value)))
            # What is there is seen, however little it is beside the rest.
            drawn.append(Bar(x, round(width, 3), round(top, 1), round(max(bottom - top, 1), 1), one.tone))
            above, below = (above + value, below) if value > 0 else (above, below + value)
    totals = [sum(column) for column in columns] if len(series) > 1 else None
    return _chart(caption, points, series, unit, scale, totals=totals, bars=drawn)


def lines(caption: str, points: Sequence[Point], series: Sequence[Series], unit: Unit) -> Chart:
    """A line for each series, broken where a value is not known."""
    known = [value for one in series for value in one.values if value is not None]
    scale = _Scale(min([0.0, *known]), max(known, default=0), unit)
    slot = 100 / max(1, len(points))
    paths = []
    for one in series:
        runs = _runs([None if value is None else scale.y(value) for value in one.values])
        line = " ".join(_polyline(run, slot * ACROSS / 100) for run in runs if len(run) > 1)
        dots = [(round(slot * (run[0][0] + 0.5), 3), run[0][1]) for run in runs if len(run) == 1]
        paths.append(Path(one.tone, line, dots))
    return _chart(caption, points, series, unit, scale, paths=paths)


def spark(values: Sequence[float], tone: str = "output") -> Spark | None:
    """None where there is nothing to see: fewer than two values, or nothing but zeros."""
    if len(values) < 2 or not any(values):
        return None
    low, high = min(0.0, *values), max(values)
    step = 100 / (len(values) - 1)
    places = [
        (round(at * step, 2), round(28 - 26 * (value - low) / ((high - low) or 1), 2))
        for at, value in enumerate(values)
    ]
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    return Spark(line, f"{line}L100 30L0 30Z", tone)


class _Scale:
    """Values to pixels, with round numbers along it."""

    def __init__(self, low: float, high: float, unit: Unit) -> None:
        low, high = min(low, 0), max(high, 0)
        span = (high - low) or (4 if unit.is_whole else 1)
        step = _round_step(span / 4)
        if unit.is_whole:
            step = max(1, math.ceil(step))
        first = math.floor(low / step + 1e-9)
        last = max(math.ceil((high or (span if not low else 0)) / step - 1e-9), first + 1)
        self.values = [step * number for number in range(first, last + 1)]

    def y(self, value: float) -> float:
        low, high = self.values[0], self.values[-1]
        return round(_TOP + (HEIGHT - _TOP) * (high - value) / (high - low), 1)


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least * 0.999)


def _chart(
    caption: str,
    points: Sequence[Point],
    series: Sequence[Series],
    unit: Unit,
    scale: _Scale,
    *,
    totals: Sequence[float] | None = None,
    bars: list[Bar] | None = None,
    paths: list[Path] | None = None,
) -> Chart:
    slot = 100 / max(1, len(points))
    spots, rows = [], []
    for at, point in enumerate(points):
        values = [(one.tone, one.name, unit.exact(one.values[at])) for one in series]
        total = [] if totals is None else [("", "Total", unit.exact(totals[at]))]
        rows.append([point.title, *(value for *_, value in values), *(value for *_, value in total)])
        # Of many, those that are something: the table has them all.
        tips = [row for row, one in zip(values, series, strict=True) if len(values) <= 4 or one.values[at]]
        spots.append(
            Spot(
                round(slot * at, 3),
                round(slot, 3),
                point.title,
                tips[:_TIP_ROWS] + (total if len(tips) > 1 else []),
                point.href,
            )
        )
    return Chart(
        caption,
        [(one.tone, one.name) for one in series],
        [(scale.y(value), unit.rough(value)) for value in scale.values],
        scale.y(0),
        _marks(points),
        spots,
        ["", *(one.name for one in series), *([] if totals is None else ["Total"])],
        rows,
        bars or [],
        paths or [],
        is_empty=not any(value for one in series for value in one.values),
    )


def _marks(points: Sequence[Point]) -> list[Mark]:
    """As many as there is room for, the first among them; at the edges they stay inside."""
    step = -(-len(points) // _MAX_MARKS) or 1
    slot = 100 / max(1, len(points))
    found = []
    for at in range(0, len(points), step):
        x = round(slot * (at + 0.5), 3)
        if x < 4:
            x, anchor = 0.0, "start"
        elif x > 96:
            x, anchor = 100.0, "end"
        else:
            anchor = "middle"
        found.append(Mark(x, points[at].tick, anchor, (at // step) % 2 == 1))
    return found


def _runs(places: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Stretches of known values, as (number, pixels)."""
    runs: list[list[tuple[int, float]]] = []
    for at, y in enumerate(places):
        if y is None:
            continue
        if runs and runs[-1][-1][0] == at - 1:
            runs[-1].append((at, y))
        else:
            runs.append([(at, y)])
    return runs


def _polyline(run: Sequence[tuple[int, float]], step: float) -> str:
    return "M" + "L".join(f"{round(step * (at + 0.5), 1):g} {y:g}" for at, y in run)
