"""Formats numbers, amounts, sizes, durations and times for pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

NOTHING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSANDS = ("", "k", "M", "B", "T")
_SPANS = (("second", 1, 44), ("minute", 60, 59), ("hour", 3600, 23), ("day", 86400, 30))
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


def day(at: datetime) -> str:
    """In UTC, as fields for days have it."""
    return f"{at.astimezone(UTC):%Y-%m-%d}"


def ago(at: datetime, now: datetime | None = None) -> str:
    """3 minutes ago, or in 3 minutes; beyond 30 days, where a difference says little, the day."""
    elapsed = ((now or datetime.now(UTC)) - at).total_seconds()
    for unit, num_seconds, at_most in _SPANS:
        number = round(abs(elapsed) / num_seconds)
        if number <= at_most:
            if unit == "second":
                return "just now" if elapsed >= 0 else "in less than a minute"
            span = f"{number} {unit}{'' if number == 1 else 's'}"
            return f"{span} ago" if elapsed >= 0 else f"in {span}"
    return day(at)


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


def seconds(value: float | None) -> str:
    """A time that was measured, below a second in milliseconds."""
    if value is None:
        return NOTHING
    return f"{value * 1000:,.0f} ms" if value < 0.9995 else f"{value:,.2f} s"


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


def sentence(text: str) -> str:
    """Returns the text with a full stop and, unless it begins with the name of a field, a capital letter."""
    if text.partition(" ")[0].isalpha():
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def percent(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.2f} %".replace("-", "−")


def count(value: float | None) -> str:
    """A whole number, all of it."""
    return NOTHING if value is None else f"{value:,.0f}".replace("-", "−")


def compact(value: float | None) -> str:
    """1.2M: as much of a number as fits beside an axis or in a tile."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size, power = abs(float(value)), 0
    while size >= 999.5 and power < len(_THOUSANDS) - 1:
        size, power = size / 1000, power + 1
    digits = 0 if size >= 99.5 or size == round(size) else 1 if size >= 9.95 or power else 2
    written = f"{size:.{digits}f}"
    written = written.rstrip("0").rstrip(".") if digits else written
    return f"{'−' if value < 0 else ''}{written}{_THOUSANDS[power]}"


def usd(micro_usd: float | None, least: int = 2) -> str:
    """Micro-USD in dollars, to the last digit that is not 0; at least so many behind the point: in a column,
    all 6 of them.
    """
    if micro_usd is None:
        return NOTHING
    whole, rest = divmod(abs(round(micro_usd)), 1_000_000)
    digits = f"{rest:06d}".rstrip("0").ljust(least, "0")
    return f"{'−' if micro_usd < 0 else ''}${whole:,}.{digits}"


def usd_roughly(micro_usd: float | None) -> str:
    """In dollars, to three digits or to the cent: what an axis or a tile has room for."""
    if micro_usd is None:
        return NOTHING
    dollars, sign = abs(micro_usd) / 1_000_000, "−" if micro_usd < 0 else ""
    if dollars >= 10_000:
        return f"{sign}${compact(dollars)}"
    if dollars >= 1 or not dollars:
        return f"{sign}${dollars:,.2f}".removesuffix(".00")
    digits = min(2 - math.floor(math.log10(dollars)), 6)
    whole, _, rest = f"{dollars:.{digits}f}".partition(".")
    return f"{sign}${whole}.{rest.rstrip('0').ljust(2, '0')}"


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "compact": compact,
    "usd": usd,
    "usd_roughly": usd_roughly,
    "size": size,
    "dtype": dtype,
    "moment": moment,
    "clock": clock,
    "machine": machine,
    "ago": ago,
    "day": day,
    "figure": figure,
    "short": short,
    "percent": percent,
}
