"""Defines a plan's terms for each service tier: availability, price and service-level targets.

A plan's row stores, per tier, what differs from the defaults. The request path, the price list and the
service-level reports enforce the terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from engine.protocol import PriorityClass

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of one service tier. Shares are in parts per million (ppm), so that money is never computed from
    floats.
    """

    allowed: bool = True
    """Whether requests can use the tier."""
    price_percent: int = 100
    """Percent of the base price."""
    contracted_tokens_per_minute: int | None = None
    """Input and output tokens together. Requests above it are served, and billed, as `default`. None: no
    bound.
    """
    ttft_target_ms: int = 2_000
    """Target for the time to first token, used in reports."""
    max_wait_ms: int | None = None
    """Requests with a longer estimated wait for their first token are refused at once. None: the engine's own
    bound.
    """
    min_output_tokens_per_second: int = 0
    """Guaranteed rate of one choice after its first token; 0 for none."""
    availability_ppm: int = 0
    """Guaranteed share of a month's requests without a server error; 0 for none."""
    output_rate_ppm: int = 0
    """Guaranteed share of a month's requests that reach `min_output_tokens_per_second`."""
    credits: tuple[tuple[int, int], ...] = ()
    """Pairs (ppm below which the credit applies, percent of the month's bill credited), by falling share and
    rising percent.
    """


DEFAULTS: Mapping[PriorityClass, Terms] = MappingProxyType(
    {
        PriorityClass.PRIORITY: Terms(
            allowed=False,
            price_percent=175,
            ttft_target_ms=500,
            min_output_tokens_per_second=50,
            availability_ppm=999_000,
            output_rate_ppm=990_000,
            credits=((999_000, 10), (990_000, 25), (950_000, 100)),
        ),
        PriorityClass.DEFAULT: Terms(availability_ppm=995_000, credits=((995_000, 5), (990_000, 10))),
        PriorityClass.FLEX: Terms(price_percent=50, ttft_target_ms=30_000),
    }
)

BOUNDS: Mapping[str, tuple[int, int]] = {
    "price_percent": (0, 10_000),
    "contracted_tokens_per_minute": (0, 1 << 53),
    "ttft_target_ms": (1, 3_600_000),
    "max_wait_ms": (1, 3_600_000),
    "min_output_tokens_per_second": (0, 1_000_000),
    "availability_ppm": (0, MILLION),
    "output_rate_ppm": (0, MILLION),
}
"""Smallest and largest value of each number, inclusive."""
OPTIONAL = frozenset({"contracted_tokens_per_minute", "max_wait_ms"})
"""Numbers that can be None."""
FIXED: Mapping[str, Any] = {"allowed": True, "contracted_tokens_per_minute": None}
"""Fixed terms of the tier `default`, which has to accept what exceeds the other tiers' contracts."""
_CLASSES = frozenset(tier.value for tier in PriorityClass)
_NAMES = frozenset(field.name for field in fields(Terms))


def read(stored: Mapping[str, Mapping[str, Any]]) -> Mapping[PriorityClass, Terms]:
    """Returns the terms of every tier, from those that a plan's row stores.

    Raises ValueError naming the term at fault; rows were checked when they were written.
    """
    wrong = [name for name in stored if name not in _CLASSES]
    if wrong:
        tiers = ", ".join(PriorityClass)
        raise ValueError(f"terms: {str(wrong[0])[:40]!r} is not a service tier: use one of {tiers}")
    if not stored:
        return DEFAULTS
    return MappingProxyType(
        {tier: _changed(tier, default, stored.get(tier, {})) for tier, default in DEFAULTS.items()}
    )


def merged(
    stored: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns what to store after `changes`. Raises ValueError naming the term at fault."""
    after = {tier: dict(terms) for tier, terms in stored.items()}
    for tier, terms in changes.items():
        after[tier] = {**after.get(tier, {}), **terms}
    read(after)
    return after


def _changed(tier: PriorityClass, default: Terms, stored: Mapping[str, Any]) -> Terms:
    values = dict(stored)
    for name, value in stored.items():
        where = f"terms: {tier}.{name[:60]}"
        if name not in _NAMES:
            raise ValueError(f"{where} is not a term")
        if name == "allowed":
            if not isinstance(value, bool):
                raise ValueError(f"{where} must be true or false, not {value!r}")
        elif name == "credits":
            values[name] = _credits(where, value)
        elif value is not None or name not in OPTIONAL:
            low, high = BOUNDS[name]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{where} must be from {low} to {high}, not {value!r}")
    if tier == PriorityClass.DEFAULT:
        for name, fixed in FIXED.items():
            if values.get(name, fixed) != fixed:
                raise ValueError(f"terms: {tier}.{name} cannot be changed: other tiers are downgraded to it")
    return replace(default, **values)


def _credits(where: str, value: Any) -> tuple[tuple[int, int], ...]:
    table = []
    for row in value if isinstance(value, list | tuple) else (None,):
        pair = tuple(row) if isinstance(row, list | tuple) else ()
        if len(pair) != 2 or any(isinstance(number, bool) or not isinstance(number, int) for number in pair):
            raise ValueError(f"{where} must be a list of pairs of integers, not {value!r}")
        table.append((pair[0], pair[1]))
    for below, percent in table:
        if not (0 < below <= MILLION and 0 < percent <= 100):
            raise ValueError(f"{where}: {below} ppm and {percent} % are out of bounds")
    for (below, percent), (next_below, next_percent) in itertools.pairwise(table):
        if not (next_below < below and next_percent > percent):
            raise ValueError(f"{where} must have falling shares and rising percents")
    return tuple(table)
