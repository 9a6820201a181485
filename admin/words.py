"""How figures and states are put into words, the same on every page. Knows no rows and no markup."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

NOTHING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB")
_DTYPES = {"bfloat16": "bf16", "float8_e4m3": "FP8", "float32": "fp32", "base": "base alone"}


def size(num_bytes: int | None) -> str:
    """1.3 MB, in powers of 1000 as disks and browsers count."""
    if num_bytes is None:
        return NOTHING
    value = float(num_bytes)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.5 else 1
    return f"{value:.{digits}f} {unit}"


def dtype(name: str | None) -> str:
    return NOTHING if name is None else _DTYPES.get(name, name)


def moment(at: datetime | None) -> str:
    """In UTC, to the minute."""
    return NOTHING if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def clock(at: datetime) -> str:
    """In UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def machine(at: datetime) -> str:
    """For a `datetime` attribute."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """Roughly: an estimate to the second would be a lie."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {round(seconds / 5) * 5} seconds"
    minutes = round(seconds / 60)
    if minutes < 2:
        return "about a minute"
    if minutes < 90:
        return f"about {minutes} minutes"
    return f"about {round(minutes / 60)} hours"


def figure(value: float | None, digits: int = 4) -> str:
    """A measured number; what is none, or not finite, is a dash."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.{digits}f}".replace("-", "−")


def short(value: float | None) -> str:
    """Three significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.3g}".replace("-", "−")


def percent(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2%}"


FILTERS: dict[str, Callable[..., Any]] = {
    "size": size,
    "dtype": dtype,
    "moment": moment,
    "clock": clock,
    "machine": machine,
    "figure": figure,
    "short": short,
    "percent": percent,
}
