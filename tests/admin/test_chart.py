"""Charts over time: what lies where, and that what is drawn is what is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import admin
from admin.charts import layout, svg
from admin.charts.layout import COUNT, HEIGHT, USD, Point, Series

DAYS = [Point(f"Nov {day}", f"{day} November") for day in range(1, 4)]
_TEMPLATES = Path(admin.__path__[0]) / "templates"


def drawn(shown: layout.Chart) -> str:
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.filters |= svg.FILTERS
    return environment.from_string('{% import "charts.html" as c %}{{ c.figure(shown) }}').render(shown=shown)


def test_bars_stand_on_each_other_to_scale() -> None:
    shown = layout.bars(
        "Tokens",
        DAYS,
        [Series("Input", "input", [100, 0, 50]), Series("Output", "output", [300, 0, 0])],
        COUNT,
    )
    first_input, first_output, last_input = shown.bars
    assert first_output.height == pytest.approx(3 * first_input.height, abs=0.2)
    assert last_input.height == pytest.approx(first_input.height / 2, abs=0.2)
    assert first_input.y + first_input.height == pytest.approx(shown.floor)
    assert first_output.y + first_output.height == pytest.approx(first_input.y, abs=0.1)
    assert first_input.x == first_output.x < last_input.x
    assert last_input.x + last_input.width <= 100
    assert [text for _, text in shown.ticks] == ["0", "100", "200", "300", "400"]
    assert shown.rows[0] == ["1 November", "100", "300", "400"]
    assert shown.spots[0].words == "1 November: 100 Input, 300 Output, 400 Total"


def test_what_is_little_is_seen_and_what_is_nothing_is_not() -> None:
    shown = layout.bars("Tokens", DAYS, [Series("Input", "input", [1_000_000, 1, 0])], COUNT)
    assert [bar.height for bar in shown.bars][1] == 1
    assert len(shown.bars) == 2
    assert layout.bars("Tokens", DAYS, [Series("Input", "input", [0, 0, 0])], COUNT).is_empty
    assert layout.bars("Tokens", [], [], COUNT).is_empty


def test_what_was_taken_back_hangs_below_the_floor() -> None:
    series = [Series("a", "c0", [-3_000_000, 5_000_000, 0]), Series("b", "c1", [-1_000_000, 0, 0])]
    shown = layout.bars("Cost", DAYS, series, USD)
    lower, _ = sorted((bar for bar in shown.bars if bar.x < 33), key=lambda bar: -bar.y)
    assert lower.tone == "c1"
    assert lower.y + lower.height <= HEIGHT
    upper = next(bar for bar in shown.bars if bar.tone == "c0" and bar.x < 33)
    assert upper.y == pytest.approx(shown.floor)
    assert upper.y + upper.height == pytest.approx(lower.y, abs=0.1)
    assert shown.rows[0] == ["1 November", "−$3.00", "−$1.00", "−$4.00"]
    assert shown.ticks[0][1].startswith("−$")


@pytest.mark.parametrize("most", [1, 2, 3, 7, 99, 12_345, 10**12])
def test_the_axis_has_few_round_whole_numbers_and_room_for_all(most: int) -> None:
    shown = layout.bars("Requests", DAYS, [Series("Requests", "c0", [most, 0, 0])], COUNT)
    assert 2 <= len(shown.ticks) <= 6
    assert len({text for _, text in shown.ticks}) == len(shown.ticks)
    assert not any("." in text for _, text in shown.ticks if most < 100)
    (bar,) = shown.bars
    assert bar.y >= 0


def test_a_line_breaks_where_nothing_is_known() -> None:
    points = [Point(str(at), str(at)) for at in range(6)]
    shown = layout.lines(
        "First token", points, [Series("p50", "c0", [1.0, 2.0, None, 3.0, None, 0.0])], COUNT
    )
    (path,) = shown.paths
    assert path.line.count("M") == 1
    assert path.line.count("L") == 1
    assert len(path.dots) == 2
    assert path.dots[1][1] == shown.floor
    assert shown.rows[2] == ["2", "–"]


def test_marks_beneath_are_few_and_stay_inside() -> None:
    points = [Point(str(at), str(at)) for at in range(31)]
    shown = layout.bars("x", points, [Series("x", "c0", [1] * 31)], COUNT)
    assert len(shown.marks) <= 8
    assert (shown.marks[0].x, shown.marks[0].anchor, shown.marks[0].is_minor) == (0.0, "start", False)
    assert shown.marks[1].is_minor


def test_of_many_series_a_spot_tells_those_that_are_something() -> None:
    series = [Series(f"key {at}", "c0", [float(at % 2), 0, 0]) for at in range(30)]
    rows = layout.bars("x", DAYS, series, COUNT).spots[0].rows
    assert [value for *_, value in rows] == ["1"] * 9 + ["15"]
    assert rows[-1][1] == "Total"


def test_markup_has_the_figures_and_escapes_names() -> None:
    evil = "<img src=x onerror=alert(1)>\"'"
    points = [Point("1", evil, f"/x?y={evil}"), *DAYS]
    page = drawn(
        layout.bars(evil, points, [Series(evil, "c0", [1, 2, 3, 0]), Series("b", "c1", [4] * 4)], COUNT)
    )
    assert "<img" not in page
    assert not re.search(r"\sstyle=|\son\w+=\"|<script", page)
    assert 'role="group"' in page
    assert page.count("<a class") == 1
    assert page.count("<tr>") == 5
    assert 'role="img"' in drawn(layout.lines("x", DAYS, [Series("x", "c0", [1, None, 2])], COUNT))


def test_bars_are_drawn_where_they_lie() -> None:
    series = [Series("Input", "input", [100, 0, 50]), Series("Output", "output", [300, 0, 0])]
    shown = layout.bars("Tokens", DAYS, series, COUNT)
    paths = re.findall(r'<path class="(\w+)" d="([^"]+)">', drawn(shown))
    assert [tone for tone, _ in paths] == ["input", "output"]
    boxes = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z", "".join(line for _, line in paths))
    found = [tuple(map(float, box)) for box in boxes]
    places = sorted(shown.bars, key=lambda bar: bar.tone == "output")
    expected = [(bar.x * 10, bar.y, bar.width * 10, bar.height, bar.width * 10) for bar in places]
    assert found == [pytest.approx(box, abs=0.01) for box in expected]


def test_a_spark_is_a_line_or_nothing() -> None:
    line = layout.spark([1, 0, 2])
    assert line is not None
    assert line.line == "M0 15L50 28L100 2"
    assert line.area.endswith("L100 30L0 30Z")
    assert layout.spark([0, 0]) is None
    assert layout.spark([7]) is None
