"""Merges ranges of event numbers and finds the gaps between them. Plain values, no I/O.

Merging is commutative and idempotent: events may arrive in any order, twice, or through several workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from engine.protocol import IssuedEvents, UsageEvent

Incarnation = tuple[str, str]
"""(engine id, incarnation id)."""
_MOST = 2**53
_MOST_TEXT = 512


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A range of events of one incarnation that have all arrived."""

    first: int
    last: int
    tokens_before: int
    """Completion tokens in events before the first."""
    tokens_after: int
    """Completion tokens in events up to and including the last."""
    noted_at: datetime
    """When the first of these events arrived."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are missing although later ones arrived, or although the engine issued them."""

    first: int
    last: int
    tokens: int
    """Completion tokens in these events."""
    noted_at: datetime
    """When the events became known to exist."""

    @property
    def num_events(self) -> int:
        return self.last - self.first + 1


def ranges_of(
    events: Iterable[UsageEvent], noted_at: datetime | None = None
) -> dict[Incarnation, list[NumberRange]]:
    """Returns the merged number ranges of a batch of events, by incarnation. Invalid numbers are skipped.

    `noted_at` defaults to the time at which each event was recorded.
    """
    found: dict[Incarnation, list[NumberRange]] = {}
    for event in events:
        number = event.number
        names = (event.engine_id, event.incarnation)
        if (
            number is None
            or not 0 < number.sequence <= _MOST
            or not 0 <= number.tokens_before <= number.tokens_after <= _MOST
            or not all(is_name(name) for name in names)
        ):
            continue
        at = noted_at or datetime.fromtimestamp(event.recorded_at, UTC)
        one = NumberRange(number.sequence, number.sequence, number.tokens_before, number.tokens_after, at)
        found.setdefault(names, []).append(one)
    return {incarnation: merged(ranges) for incarnation, ranges in found.items()}


def is_name(text: str) -> bool:
    """Whether the text can be stored as the id of an engine or an incarnation."""
    return 0 < len(text) <= _MOST_TEXT and "\x00" not in text


def is_possible(issued: IssuedEvents) -> bool:
    """Whether the reported counts are valid."""
    return (
        is_name(issued.engine_id)
        and is_name(issued.incarnation)
        and 0 < issued.events <= _MOST
        and 0 <= issued.tokens <= _MOST
    )


def merged(ranges: Iterable[NumberRange]) -> list[NumberRange]:
    """Returns the same numbers in as few ranges as possible, ordered by their first."""
    found: list[NumberRange] = []
    for one in sorted(ranges, key=lambda one: (one.first, one.tokens_before)):
        if not found or one.first > found[-1].last + 1:
            found.append(one)
            continue
        known = found[-1]
        longest = one if one.last > known.last else known
        found[-1] = replace(
            known,
            last=longest.last,
            tokens_after=longest.tokens_after,
            noted_at=min(known.noted_at, one.noted_at),
        )
    return found


def gaps(
    ranges: Sequence[NumberRange], issued: int = 0, tokens: int = 0, at: datetime | None = None
) -> list[Gap]:
    """Returns the gaps between merged ranges. With `issued` events that hold `tokens`, reported at `at`, also
    the gap after the last range.
    """
    found = []
    last, tokens_after = 0, 0
    for one in ranges:
        if one.first > last + 1:
            missing = max(0, one.tokens_before - tokens_after)
            found.append(Gap(last + 1, one.first - 1, missing, one.noted_at))
        last, tokens_after = one.last, one.tokens_after
    if at is not None and issued > last:
        found.append(Gap(last + 1, issued, max(0, tokens - tokens_after), at))
    return found
