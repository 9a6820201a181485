"""Lays out live charts of the last minutes, redrawn every second: stacked areas or lines.

They are lighter than `admin.charts.layout`: points have no tooltip, since by the time one is read it has
moved on. A chart's `words` say the same in a sentence for screen readers. The vertical axis has a hundred
units, the horizontal one a unit for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

HEIGHT = 100
"""Units down the plot."""
_ROUND = (1, 2, 4, 5, 10)


@dataclass(frozen=True, slots=True)
class Layer:
    """A series: a value for each column, None where there is none."""

    name: str
    tone: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class LiveSeries:
    name: str
    tone: str
    path: str
    now: str


@dataclass(frozen=True, slots=True)
class LiveChart:
    """All that the template draws."""

    title: str
    words: str
    layers: list[LiveSeries]
    """As they are to be painted: a later one covers an earlier one."""
    legend: list[LiveSeries]
    ticks: list[tuple[int, str]]
    """(units down, words)."""
    is_lines: bool
    width: int
    """Units across: the number of columns."""


Say = Callable[[float], str]


def stacked(title: str, layers: Sequence[Layer], say: Say, least: float = 1.0) -> LiveChart:
    """The layers of each column on top of each other, the first one lowest. `least`: what the axis reaches
    at least.
    """
    width = len(layers[0].values)
    sums = [0.0] * width
    heights: list[list[float]] = []
    for layer in layers:
        sums = [below + (value or 0.0) for below, value in zip(sums, layer.values, strict=True)]
        heights.append(sums)
    top = round_up(max([least, *sums]))
    legend = [
        LiveSeries(layer.name, layer.tone, _area(height, top), say(layer.values[-1] or 0.0))
        for layer, height in zip(layers, heights, strict=True)
    ]
    words = f"{title}: {say(sums[-1])} now, at most {say(max(sums))} in the time shown."
    return LiveChart(title, words, legend[::-1], legend, _ticks(top, say), False, width)


def lines(title: str, layers: Sequence[Layer], say: Say, least: float) -> LiveChart:
    """A line for each layer, broken where there is no value."""
    width = len(layers[0].values)
    known = [[value for value in layer.values if value is not None] for layer in layers]
    top = round_up(max([least, *(max(values, default=0.0) for values in known)]))
    drawn = [
        LiveSeries(layer.name, layer.tone, _line(layer.values, top), say(values[-1]) if values else "–")
        for layer, values in zip(layers, known, strict=True)
    ]
    told = [f"{one.name} {one.now} now" for one in drawn]
    return LiveChart(title, f"{title}: {', '.join(told)}.", drawn, drawn, _ticks(top, say), True, width)


def round_up(value: float) -> float:
    """To a round number, half of which is one too."""
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 < value:
        power *= 10
    return next(power * step for step in _ROUND if power * step >= value * 0.9999)


def _ticks(top: float, say: Say) -> list[tuple[int, str]]:
    return [(0, say(top)), (HEIGHT // 2, say(top / 2)), (HEIGHT, say(0.0))]


def _y(value: float, top: float) -> int:
    """What is there is seen, however little it is."""
    y = round(HEIGHT * (1 - min(value, top) / top))
    return min(y, HEIGHT - 1) if value > 0 else HEIGHT


def _area(heights: Sequence[float], top: float) -> str:
    """Steps, down to the floor; nothing where there is nothing."""
    if not any(heights):
        return ""
    path, last = [f"M0 {HEIGHT}"], HEIGHT
    for at, height in enumerate(heights):
        y = _y(height, top)
        if y != last:
            path.append(f"H{at}V{y}")
            last = y
    return "".join(path) + f"H{len(heights)}V{HEIGHT}z"


def _line(values: Sequence[float | None], top: float) -> str:
    path: list[str] = []
    last: int | None = None
    for at, value in enumerate(values):
        if value is None:
            if last is not None:
                path.append(f"H{at}")
            last = None
            continue
        y = _y(value, top)
        if last is None:
            path.append(f"M{at} {y}")
        elif y != last:
            path.append(f"H{at}V{y}")
        last = y
    if last is not None:
        path.append(f"H{len(values)}")
    return "".join(path)
