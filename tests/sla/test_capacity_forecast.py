"""Forecasts find the slope and the season that a series was made of, and say how sure they are."""

from __future__ import annotations

import random

import pytest

from sla.capacity.forecast import HOURS_A_WEEK, MIN_HOURS, fit

START = 494_000
"""Hours since the epoch."""


def series(hours: int, slope: float, *, noise: float = 0.0, season: float = 0.0) -> list[tuple[int, float]]:
    rng = random.Random(1)
    return [
        (
            START + hour,
            100 + slope * hour + season * (1 if hour % 24 < 12 else -1) + rng.gauss(0, noise),
        )
        for hour in range(hours)
    ]


def test_a_line_reaches_its_limit_when_it_does() -> None:
    trend = fit(series(200, 0.5), is_seasonal=False)
    assert trend is not None
    assert trend.slope == pytest.approx(0.5)
    reached = trend.reaches(100 + 0.5 * 300)
    assert reached.expected == pytest.approx(300 - 199, abs=1)
    assert (reached.earliest, reached.latest) == (reached.expected, reached.expected), "without noise"


def test_noise_widens_the_range() -> None:
    quiet, loud = (fit(series(400, 0.5, noise=noise), is_seasonal=False) for noise in (1.0, 20.0))
    assert quiet is not None
    assert loud is not None
    limit = 100 + 0.5 * 800
    narrow, wide = quiet.reaches(limit), loud.reaches(limit)
    for reached in (narrow, wide):
        assert reached.earliest is not None
        assert reached.latest is not None
        assert reached.earliest <= 400 <= reached.latest
    assert wide.latest - wide.earliest > 3 * (narrow.latest - narrow.earliest)  # type: ignore[operator]


def test_the_range_holds_what_comes() -> None:
    made = series(6 * HOURS_A_WEEK, 0.1, noise=10.0, season=50.0)
    known, later = made[: 4 * HOURS_A_WEEK], made[4 * HOURS_A_WEEK :]
    trend = fit(known, is_seasonal=True)
    assert trend is not None
    within = [
        expected.low <= value <= expected.high
        for hour, value in later
        if (expected := trend.at(hour - START))
    ]
    assert 0.85 < sum(within) / len(within) < 0.97


def test_a_season_is_no_trend() -> None:
    """A series that ends on a Monday noon would rise for ever by its last hours alone."""
    made = series(3 * HOURS_A_WEEK + 8, 0.0, season=50.0)
    trend = fit(made, is_seasonal=True)
    assert trend is not None
    assert abs(trend.slope) < 1e-3
    assert trend.reaches(200.0).expected is None
    assert trend.reaches(149.0).expected is not None, "its peaks reach that every day"
    assert trend.at(len(made) + 1).value > trend.at(len(made) + 12).value


def test_a_few_samples_say_nothing() -> None:
    assert fit(series(MIN_HOURS - 1, 1.0), is_seasonal=False) is None
    assert fit([], is_seasonal=True) is None


def test_hours_that_are_missing_are_left_out() -> None:
    made = series(600, 0.5)
    trend = fit([one for one in made if one[0] % 7], is_seasonal=True)
    assert trend is not None
    assert trend.slope == pytest.approx(0.5, rel=0.02)


def test_what_falls_reaches_nothing() -> None:
    trend = fit(series(300, -0.2), is_seasonal=False)
    assert trend is not None
    reached = trend.reaches(500.0)
    assert (reached.expected, reached.earliest, reached.latest) == (None, None, None)
