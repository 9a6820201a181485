from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.ratelimit import go_duration, rate_headers
from tenants.limits.kinds import RateView

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.9995, "1s"),
        (1.5, "1.5s"),
        (10, "10s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3600.25, "1h0m0.25s"),
        (90_000, "25h0m0s"),
    ],
)
def test_durations_read_as_go_writes_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


@given(st.floats(0, 1e7))
def test_a_duration_is_never_shorter_than_what_it_says(seconds: float) -> None:
    parts = re.findall(r"([0-9.]+)(ms|h|m|s)", go_duration(seconds))
    said = sum(float(number) * UNITS[unit] for number, unit in parts)
    assert seconds - 1e-6 <= said <= seconds + 0.0011


def test_where_there_is_no_limit_nothing_is_said_of_it() -> None:
    assert rate_headers(None, None, False) == {}
    assert rate_headers(RateView(60, 59, 1.0), None, True) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-rootstock-quota": "local",
    }
