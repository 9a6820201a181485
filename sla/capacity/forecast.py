"""Forecasts when the use of a resource reaches its limit.

    value(t) = level + slope t + season(hour of the week) + error

The line is fitted by least squares; the season is the mean of what the line leaves, by hour of the week, once
two weeks are known. The range of a forecast is that of the line's slope and level, of the season's means and
of the error at 90 %: so a date has an earliest and a latest one. This is plain computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HOURS_A_WEEK = 168
MIN_HOURS = 48
"""Fewer samples say nothing of a trend."""
QUANTILE = 1.645
"""Of the normal distribution: 90 % lie within plus and minus so many standard deviations."""
MAX_AHEAD_H = 24 * 365
"""A limit that is reached later is not reached."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A forecast hour: the expected value, and where 90 % of values lie."""

    hour: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Reached:
    """Hours from the last sample until a limit is reached."""

    expected: int | None
    """None: not within a year."""
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True)
class Trend:
    """A fitted series. Hours count from the first sample."""

    level: float
    slope: float
    """By hour."""
    season: tuple[float, ...]
    """By hour of the week, `HOURS_A_WEEK` of them; empty without one."""
    first_hour: int
    """The hour of the week of the first sample."""
    last: int
    """The last sampled hour."""
    error: float
    """Standard deviation of what the fit leaves."""
    middle: float
    slope_error: float
    level_error: float
    season_error: float
    """Of the mean of one hour of the week."""

    def at(self, hour: int) -> Expected:
        """Returns what is expected at an hour."""
        value = self.level + self.slope * hour + self._season(hour)
        of_line = math.hypot(self.level_error, self.slope_error * (hour - self.middle))
        margin = QUANTILE * math.hypot(self.error, of_line, self.season_error)
        return Expected(hour, max(0.0, value), max(0.0, value - margin), max(0.0, value + margin))

    def reaches(self, limit: float) -> Reached:
        """Returns when the limit is first reached: by what is expected, by the upper bound, by the lower."""
        found: dict[str, int | None] = {"value": None, "high": None, "low": None}
        for ahead in range(MAX_AHEAD_H):
            expected = self.at(self.last + ahead)
            for name in ("value", "high", "low"):
                if found[name] is None and getattr(expected, name) >= limit:
                    found[name] = ahead
            if found["low"] is not None:
                break
        return Reached(found["value"], found["high"], found["low"])

    def _season(self, hour: int) -> float:
        return self.season[(self.first_hour + hour) % HOURS_A_WEEK] if self.season else 0.0


def fit(samples: Sequence[tuple[int, float]], *, is_seasonal: bool) -> Trend | None:
    """Fits (hour, value); hours count from the Unix epoch and rise. None where there are too few."""
    if len(samples) < MIN_HOURS:
        return None
    start = samples[0][0]
    hours = [hour - start for hour, _ in samples]
    values = [value for _, value in samples]
    first_hour = (start - 4 * 24) % HOURS_A_WEEK  # the epoch was a Thursday: weeks begin on Mondays
    season: tuple[float, ...] = ()
    level, slope = _line(hours, values)
    if is_seasonal and hours[-1] >= 2 * HOURS_A_WEEK:
        # Line and season take turns: a week that is cut off at the end would tilt the line.
        for _ in range(5):
            left = [value - level - slope * hour for hour, value in zip(hours, values, strict=True)]
            season = _season_of(hours, left, first_hour)
            plain = [
                value - season[(first_hour + hour) % HOURS_A_WEEK]
                for hour, value in zip(hours, values, strict=True)
            ]
            level, slope = _line(hours, plain)
    left = [
        value - level - slope * hour - (season[(first_hour + hour) % HOURS_A_WEEK] if season else 0.0)
        for hour, value in zip(hours, values, strict=True)
    ]
    count = len(hours)
    middle = sum(hours) / count
    spread = sum((hour - middle) ** 2 for hour in hours)
    parameters = 2 + (HOURS_A_WEEK - 1 if season else 0)
    error = math.sqrt(sum(one * one for one in left) / max(1, count - parameters))
    return Trend(
        level, slope, season, first_hour, hours[-1], error, middle,
        error / math.sqrt(spread) if spread else 0.0, error / math.sqrt(count),
        error / math.sqrt(count / HOURS_A_WEEK) if season else 0.0,
    )  # fmt: skip


def _line(hours: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    middle, mean = sum(hours) / len(hours), sum(values) / len(values)
    spread = sum((hour - middle) ** 2 for hour in hours)
    both = sum((hour - middle) * (value - mean) for hour, value in zip(hours, values, strict=True))
    slope = both / spread if spread else 0.0
    return mean - slope * middle, slope


def _season_of(hours: Sequence[int], left: Sequence[float], first_hour: int) -> tuple[float, ...]:
    """The mean of each hour of the week, and 0 together."""
    sums, counts = [0.0] * HOURS_A_WEEK, [0] * HOURS_A_WEEK
    for hour, value in zip(hours, left, strict=True):
        place = (first_hour + hour) % HOURS_A_WEEK
        sums[place] += value
        counts[place] += 1
    means = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
    mean = sum(means) / HOURS_A_WEEK
    return tuple(one - mean for one in means)
