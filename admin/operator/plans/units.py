"""Defines the units of a plan's values: how a form's text is parsed, written back, and shown on a page.

Errors are `FieldError`s for the named field, in the unit that was typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from admin import formatting
from admin.amounts import read_dollars, size_written
from admin.limits.page import amount_words, amount_written, read_amount
from admin.operator.prices.page import written as dollars_written
from admin.web.form_errors import FieldError
from engine.protocol import PriorityClass
from tenants.limits.kinds import Metric
from tenants.tier_terms import MILLION, read

NONE = "none"
_SHARE = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,4}))?")
_RUNG = re.compile(r"(?:below )?([0-9.]{1,8}) ?%?(?::| ) ?([0-9]{1,3}) ?%?")
_NUMBER = re.compile(r"-?[0-9]{1,6}(?:\.[0-9]{1,10})?")


@dataclass(frozen=True)
class Unit:
    """How values of a kind are parsed, written into a field, and shown on a page."""

    read: Callable[[str, str], Any]
    """Parses a text; the field's name is for the error. Raises FieldError."""
    written: Callable[[Any], str]
    told: Callable[[Any], str]
    control: Literal["input", "check", "lines"] = "input"
    mode: str = "numeric"
    """The keyboard that a telephone shows: HTML's `inputmode`."""
    name: str = ""
    """Of the unit, in a field's label."""


def _read_share(text: str, field: str) -> int:
    found = _SHARE.fullmatch(text.removesuffix("%").strip())
    if found is None:
        raise FieldError(field, "Enter a percentage such as 99.9.")
    return int(found[1]) * 10_000 + int((found[2] or "").ljust(4, "0"))


def _share(ppm: float) -> str:
    return f"{ppm / 10_000:.4f}".rstrip("0").rstrip(".")


def _read_rungs(text: str, field: str) -> tuple[tuple[int, int], ...]:
    table = []
    for line in text.splitlines():
        if not line.strip():
            continue
        found = _RUNG.fullmatch(" ".join(line.split()))
        if found is None:
            raise FieldError(field, f"Write each line like 99.9: 10, not {line.strip()[:40]}.")
        below, percent = _read_share(found[1], field), int(found[2])
        if not (0 < below <= MILLION and 0 < percent <= 100):
            raise FieldError(field, "Percentages must be greater than 0 and at most 100.")
        table.append((below, percent))
    try:
        read({PriorityClass.DEFAULT: {"credits": table}})
    except ValueError:
        raise FieldError(
            field, "Each line must have a lower percentage and a higher credit than the one before."
        ) from None
    return tuple(table)


def _rungs(table: Iterable[tuple[int, int]]) -> str:
    return "\n".join(f"{_share(below)}: {percent}" for below, percent in table)


def _rungs_told(table: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{percent}\u00a0% below {_share(below)}\u00a0%" for below, percent in table) or NONE


def _read_number(text: str, field: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise FieldError(field, "Enter a number such as 0.02.")
    return float(text)


def _size_told(num_bytes: float) -> str:
    rough, exact = formatting.size(int(num_bytes)), size_written(int(num_bytes))
    return exact if not exact.endswith(" B") else f"{rough} ({int(num_bytes):,} B)"


def _counted(unit: str = "") -> Unit:
    return Unit(
        lambda text, field: read_amount(Metric.REQUESTS_PER_DAY, text, field),
        lambda value: str(int(value)),
        lambda value: f"{formatting.count(value)} {unit}".rstrip(),
        name=unit,
    )


def unit_of_limit(metric: Metric) -> Unit:
    """Returns the unit of the amounts of a limit."""
    return Unit(
        lambda text, field: read_amount(metric, text, field),
        lambda value: amount_written(metric, value),
        lambda value: (
            amount_words(metric, int(value)) if metric != Metric.STORAGE_BYTES else _size_told(value)
        ),
        mode="decimal",
    )


DOLLARS = Unit(read_dollars, dollars_written, formatting.usd, mode="decimal", name="USD")
SIZE = unit_of_limit(Metric.STORAGE_BYTES)
COUNT, MILLISECONDS, PERCENT = _counted(), _counted("ms"), _counted("%")
RATE = replace(COUNT, told=lambda value: formatting.count(value) if value else NONE)
PPM = Unit(_read_share, _share, lambda ppm: f"{_share(ppm)} %" if ppm else NONE, mode="decimal", name="%")
YES = Unit(
    lambda text, _: text == "on",
    lambda is_on: "on" if is_on else "",
    lambda is_on: "Yes" if is_on else "No",
    "check",
)
LINES = Unit(_read_rungs, _rungs, _rungs_told, "lines")
NATS = Unit(_read_number, lambda value: f"{value:.10g}", lambda value: f"{value:.10g}", mode="decimal")
