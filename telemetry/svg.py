"""Draws charts as SVG text: lines over numbers or categories, horizontal bars; readable on light and dark.

It draws only the points it is given, without smoothing. Series differ by mark and dash besides colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 64, 62
BAR_LABELS, BAR_ROW = 330, 22
DASHES = ("", "6 3", "2 3", "8 3 2 3")

_STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --faint: #d8dee4; --soft: #59636e;
        --s0: #0b5cad; --s1: #c2410c; --s2: #15803d; --s3: #7e22ce; --s4: #854d0e; --s5: #475569; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --faint: #30363d; --soft: #9198a1;
          --s0: #6cb6ff; --s1: #ffa657; --s2: #56d364; --s3: #d2a8ff; --s4: #e3b341; --s5: #adbac7; }
  }
  text { font: 12px system-ui, sans-serif; fill: var(--ink); }
  .title { font-size: 15px; font-weight: 600; }
  .soft { fill: var(--soft); }
  .grid { stroke: var(--faint); stroke-width: 1; }
  .axis { stroke: var(--soft); stroke-width: 1; }
"""
_NUM_COLOURS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) under one name; with categories, x is the category's place."""

    name: str
    points: Sequence[tuple[float, float]]
    line: bool = True
    """False: marks alone."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says and spans; the span is that of the data, from 0 unless logarithmic."""

    label: str
    log: bool = False
    categories: tuple[str, ...] = ()
    marks: tuple[float, ...] = ()
    """Of a logarithmic axis, where 1, 2 and 5 are not what the data stand at."""
    whole: bool = False
    """What is counted has no halves."""


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Raises ValueError when there is nothing to draw, or a number that a logarithm refuses."""
    points = [point for one in series for point in one.points]
    if not points:
        raise ValueError(f"{title}: no points")
    x_of = _scale([point[0] for point in points], x, LEFT + 14, WIDTH - RIGHT - 14)
    y_of = _scale([point[1] for point in points], y, HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 24, title, "title")]
    for value, label in y_of.ticks:
        height = y_of(value)
        parts.append(_line(LEFT, height, WIDTH - RIGHT, height, "grid"))
        parts.append(_text(LEFT - 8, height + 4, label, "soft", "end"))
    for value, label in x_of.ticks:
        parts.append(_line(x_of(value), HEIGHT - BOTTOM, x_of(value), HEIGHT - BOTTOM + 4, "axis"))
        parts.append(_text(x_of(value), HEIGHT - BOTTOM + 18, label, "soft", "middle"))
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 38, x.label, "", "middle"))
    parts.append(
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    parts += [_drawn(index, one, x_of, y_of) for index, one in enumerate(series)]
    parts.append(_legend([one.name for one in series]))
    return _document(WIDTH, HEIGHT, title, parts)


def bar_chart(title: str, label: str, bars: Sequence[tuple[str, float]], limit: float) -> str:
    """Horizontal bars from 0 to `limit`, in the order given, each with its number."""
    if not bars:
        raise ValueError(f"{title}: no bars")
    height = TOP + BAR_ROW * len(bars) + 46
    left, right = BAR_LABELS, WIDTH - 60
    parts = [_text(20, 24, title, "title")]
    for value in _round_ticks(0, limit):
        x = left + (right - left) * value / limit
        parts.append(_line(x, TOP - 8, x, height - 42, "grid"))
        parts.append(_text(x, height - 26, _label(value), "soft", "middle"))
    for index, (name, value) in enumerate(bars):
        top = TOP + BAR_ROW * index
        width = (right - left) * min(value, limit) / limit
        parts.append(_text(left - 8, top + 12, name, "", "end"))
        parts.append(
            f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{BAR_ROW - 8}" fill="var(--s0)"/>'
        )
        parts.append(_text(left + width + 6, top + 12, _label(value), "soft"))
    parts.append(_text((left + right) / 2, height - 8, label, "", "middle"))
    return _document(WIDTH, height, title, parts)


def without_style(document: str) -> str:
    """A chart to stand inside a page whose own style sheet has its colours, classes and ground."""
    head, _, rest = document.partition("<style>")
    _, _, body = rest.partition("</style>\n")
    return head + body.partition("\n")[2]


@dataclass(frozen=True, slots=True)
class _Scale:
    place: Callable[[float], float]
    ticks: list[tuple[float, str]]

    def __call__(self, value: float) -> float:
        return self.place(value)


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    """Data to pixels. `start` is where the smallest value lies."""
    if axis.categories:
        step = (end - start) / max(1, len(axis.categories))
        ticks = [(float(place), name) for place, name in enumerate(axis.categories)]
        return _Scale(lambda value: start + (value + 0.5) * step, ticks)
    low, high = min(values), max(values)
    if axis.log:
        if low <= 0:
            raise ValueError(f"{axis.label}: {low} on a logarithmic axis")
        marks = list(axis.marks) or _log_ticks(low, high)
        low, high = min(low, marks[0]), max(high, marks[-1])
        span = math.log(high / low) or 1.0
        return _Scale(
            lambda value: start + (end - start) * math.log(value / low) / span,
            [(mark, _label(mark)) for mark in marks],
        )
    marks = _round_ticks(min(0.0, low), high, whole=axis.whole)
    low, high = marks[0], marks[-1]
    return _Scale(
        lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0),
        [(mark, _label(mark)) for mark in marks],
    )


def _round_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About six round numbers around [low, high]."""
    raw = max((high - low or abs(high) or 1.0) / 5, 1.0 if whole else 0.0)
    power = 10 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(power * factor for factor in factors if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) for place in range(first, max(last, first + 1) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 in every decade around [low, high]; 1 alone where there are many decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    marks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    inside = [mark for mark in marks if low <= mark <= high]
    below = [mark for mark in marks if mark < low]
    above = [mark for mark in marks if mark > high]
    return below[-1:] + inside + above[:1]


def _label(value: float) -> str:
    """1 500 rather than 1500.0, 0.5 rather than 0.50."""
    if value == int(value):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.3g}"


def _drawn(index: int, series: Series, x_of: _Scale, y_of: _Scale) -> str:
    colour = _colour(index)
    places = [(x_of(x), y_of(y)) for x, y in series.points]
    parts = []
    if series.line and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = DASHES[index % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
    for (x, y), (_, value) in zip(places, series.points, strict=True):
        parts.append(_mark(index, x, y, f"{series.name}: {_label(value)}"))
    return f'<g data-series="{escape(series.name, {chr(34): "&quot;"})}">{"".join(parts)}</g>'


def _mark(index: int, x: float, y: float, tooltip: str = "") -> str:
    fill = f'fill="{_colour(index)}"'
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}>',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}>',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5-5.5 5.5-5.5-5.5z" {fill}>',
        f'<path d="M{x:.1f} {y - 5:.1f}l5.2 9h-10.4z" {fill}>',
    )
    shape = shapes[index % len(shapes)]
    return f"{shape}<title>{escape(tooltip)}</title></{shape[1:].split()[0]}>"


def _legend(names: Sequence[str]) -> str:
    parts, x = [], float(LEFT)
    for index, name in enumerate(names):
        parts.append(_mark(index, x + 5, 42, name))
        parts.append(_text(x + 15, 46, name))
        x += 15 + 6.8 * len(name) + 22
    return "".join(parts)


def _colour(index: int) -> str:
    return f"var(--s{index % _NUM_COLOURS})"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    described = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{described}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _document(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>\n{body}\n</svg>\n'
    )
