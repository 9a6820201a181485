"""Turns usage events into ledger rows, and merges the events of one request into one row.

Merging takes the largest of each measure, so it is commutative, associative and idempotent: events may arrive
in any order, twice, or split over any batches, and the row is the same. `billing.repository` merges with the
stored row by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from billing.errors import MalformedEvent
from billing.rates import MAX_PERCENT, MAX_RATE, Rate
from engine.protocol import UsageEvent

MAX_COUNT = 2**53
"""A larger count is corrupt data, not usage."""
MAX_TEXT_LEN = 512
EARLIEST = 946_684_800.0
"""Unix time of 2000-01-01. An earlier submission means a wrong clock or corrupt data."""
LATEST = 4_102_444_800.0
"""Unix time of 2100-01-01."""

N = TypeVar("N", int, float, str)


@dataclass(frozen=True, slots=True)
class Measured:
    """The row of one request, as far as its events say. Times are Unix seconds, durations seconds."""

    request_id: str
    submitted_at: float
    tenant_id: str
    key_id: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    endpoint: str
    service_tier: str
    num_choices: int
    engine_id: str
    project_id: str | None
    user_id: str | None
    price_id: str
    input_price: int
    cached_input_price: int
    output_price: int
    price_percent: int
    owner_id: str | None
    share_id: str | None
    share_input_price: int
    share_output_price: int
    owner_percent: int
    # The fields above are the same in every event of a request; those below grow.
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    preemptions: int
    recorded_at: float
    finish_reason: str | None
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float | None

    @property
    def key(self) -> tuple[float, str]:
        return (self.submitted_at, self.request_id)


_decoder = msgspec.msgpack.Decoder(UsageEvent)


def decode(payload: bytes | None) -> UsageEvent:
    """Returns the event of a journal entry. Raises MalformedEvent with the reason."""
    if payload is None:
        raise MalformedEvent("no field e")
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise MalformedEvent(f"not a usage event: {error}") from error


def measure(event: UsageEvent) -> Measured:
    """Returns the row that one event amounts to. Raises MalformedEvent for values that the ledger rejects."""
    usage = event.usage
    for name, count in (
        ("prompt_tokens", usage.prompt_tokens),
        ("completion_tokens", usage.completion_tokens),
        ("preemptions", event.preemptions),
        ("n", event.n),
    ):
        if not 0 <= count <= (MAX_COUNT if name.endswith("tokens") else 2**31 - 1):
            raise MalformedEvent(f"{name} is {count}")
    if not 0 <= usage.cached_tokens <= usage.prompt_tokens:
        raise MalformedEvent(f"cached_tokens is {usage.cached_tokens} of {usage.prompt_tokens}")
    if not 0 <= usage.reasoning_tokens <= usage.completion_tokens:
        raise MalformedEvent(f"reasoning_tokens is {usage.reasoning_tokens} of {usage.completion_tokens}")
    labels = event.labels
    rate = _rate(labels)
    share = rate.share
    return Measured(
        request_id=_text("request_id", event.request_id, required=True),
        submitted_at=_time("submitted_at", event.submitted_at),
        tenant_id=_text("tenant", event.tenant, required=True),
        key_id=_text("key_id", labels.get("key_id", "")),
        model=_text("model", labels.get("model", "")),
        adapter_id=_text("adapter_id", labels.get("adapter_id", "")) or None,
        adapter_version=_version(labels.get("adapter_version", "")),
        adapter_digest=_text("adapter_digest", event.adapter_digest or "") or None,
        endpoint=_text("endpoint", labels.get("endpoint", "")),
        service_tier=_text("service_tier", labels.get("service_tier", event.priority.value)),
        num_choices=event.n,
        engine_id=_text("engine_id", event.engine_id),
        project_id=_text("project_id", labels.get("project_id", "")) or None,
        user_id=_text("user_id", labels.get("user_id", "")) or None,
        price_id=_text("price_id", rate.price_id),
        input_price=rate.input,
        cached_input_price=rate.cached_input,
        output_price=rate.output,
        price_percent=rate.percent,
        owner_id=None if share is None else share.owner_id,
        share_id=None if share is None else share.share_id,
        share_input_price=0 if share is None else share.input,
        share_output_price=0 if share is None else share.output,
        owner_percent=0 if share is None else share.owner_percent,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        preemptions=event.preemptions,
        recorded_at=_time("recorded_at", event.recorded_at),
        finish_reason=_text("finish_reason", event.finish_reason or "") or None,
        queue_seconds=_since(event.submitted_at, "scheduled_at", event.scheduled_at),
        first_token_seconds=_since(event.submitted_at, "first_token_at", event.first_token_at),
        total_seconds=_since(event.submitted_at, "finished_at", event.finished_at),
    )


def merge(one: Measured, other: Measured) -> Measured:
    """Returns the row of two events of the same request.

    Of two finish reasons, the later in the alphabet wins: `stop` and `length` over the `error` or `abort`
    that a restarted engine writes for a request whose end it did not see.
    """
    assert one.key == other.key
    return replace(
        one,
        prompt_tokens=max(one.prompt_tokens, other.prompt_tokens),
        cached_tokens=max(one.cached_tokens, other.cached_tokens),
        completion_tokens=max(one.completion_tokens, other.completion_tokens),
        reasoning_tokens=max(one.reasoning_tokens, other.reasoning_tokens),
        preemptions=max(one.preemptions, other.preemptions),
        recorded_at=max(one.recorded_at, other.recorded_at),
        finish_reason=_larger(one.finish_reason, other.finish_reason),
        queue_seconds=_larger(one.queue_seconds, other.queue_seconds),
        first_token_seconds=_larger(one.first_token_seconds, other.first_token_seconds),
        total_seconds=_larger(one.total_seconds, other.total_seconds),
    )


def fold(measured: Iterable[Measured]) -> list[Measured]:
    """Returns one row per request, ordered by key."""
    rows: dict[tuple[float, str], Measured] = {}
    for row in measured:
        known = rows.get(row.key)
        rows[row.key] = row if known is None else merge(known, row)
    return [rows[key] for key in sorted(rows)]


def _larger(one: N | None, other: N | None) -> N | None:
    """Returns the larger value, ignoring None, as PostgreSQL's GREATEST does."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _text(name: str, value: str, *, required: bool = False) -> str:
    if required and not value:
        raise MalformedEvent(f"{name} is empty")
    if len(value) > MAX_TEXT_LEN:
        raise MalformedEvent(f"{name} has {len(value)} characters")
    if "\x00" in value:
        raise MalformedEvent(f"{name} has a zero byte")
    return value


def _time(name: str, value: float) -> float:
    """Returns the time rounded to the microsecond, which is what PostgreSQL keeps, so that the times of two
    events compare alike in Python and in SQL.
    """
    if not EARLIEST <= value <= LATEST:  # NaN too
        raise MalformedEvent(f"{name} is {value}")
    return round(value, 6)


def _since(submitted_at: float, name: str, value: float | None) -> float | None:
    """Returns the seconds since submission. Clocks may differ slightly; it is never negative."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise MalformedEvent(f"{name} is {value}")
    return max(0.0, value - submitted_at)


def _rate(labels: Mapping[str, str]) -> Rate:
    """Returns the rate that the labels carry, the free rate without one."""
    rate = Rate.of_labels(labels)
    if max(rate.input, rate.cached_input, rate.output) > MAX_RATE or rate.percent > MAX_PERCENT:
        raise MalformedEvent(f"rate is {rate.label[:80]!r}")
    return rate


def _version(label: str) -> int | None:
    if not label:
        return None
    if not (label.isascii() and label.isdigit() and len(label) <= 9):
        raise MalformedEvent(f"adapter_version is {label[:40]!r}")
    return int(label)
