"""A horizontal bar chart as data for the template: positions and widths, no markup.

Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BAR_PX = 18
GAP_PX = 14
LABEL_PX = 190
PLOT_PX = 380
VALUE_PX = 110


@dataclass(frozen=True)
class Bar:
    """One row: two stacked parts (such as prompt and completion), in pixels of the view box."""

    label: str
    value: str
    y: int
    first_width: float
    second_width: float

    @property
    def second_x(self) -> float:
        return LABEL_PX + self.first_width

    @property
    def end_x(self) -> float:
        return self.second_x + self.second_width

    @property
    def text_y(self) -> int:
        return self.y + BAR_PX - 5


@dataclass(frozen=True)
class Chart:
    """All rows, and the size of the view box."""

    bars: tuple[Bar, ...]
    width: int
    height: int
    bar_height: int = BAR_PX
    label_x: int = LABEL_PX - 10
    plot_x: int = LABEL_PX


def bar_chart(rows: Sequence[tuple[str, int, int]]) -> Chart:
    """A chart of (label, first part, second part), the longest bar filling the plot."""
    longest = max((first + second for _, first, second in rows), default=0)
    scale = PLOT_PX / longest if longest else 0.0
    bars = []
    for index, (label, first, second) in enumerate(rows):
        bars.append(
            Bar(
                label=label if len(label) <= 28 else f"{label[:27]}…",
                value=f"{first + second:,}",
                y=index * (BAR_PX + GAP_PX),
                # A row that exists is visible, however small beside the longest.
                first_width=round(max(first * scale, 1.0 if first else 0.0), 1),
                second_width=round(max(second * scale, 1.0 if second else 0.0), 1),
            )
        )
    height = max(1, len(bars) * (BAR_PX + GAP_PX) - GAP_PX)
    return Chart(tuple(bars), LABEL_PX + PLOT_PX + VALUE_PX, height)
