"""Reads samples and advice for the operators' page, with a forecast of each resource."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import redis.asyncio

from db.session import EVERY_TENANT, Database
from sla.capacity.forecast import Expected, Reached, Trend, fit
from sla.capacity.models import CapacitySample
from sla.capacity.repository import CapacityRepository
from sla.capacity.resources import BY_ID, Resource

ADVICE = "rootstock:capacity:advice"
"""Redis hash: the planner's advice on each base."""
SHOWN = timedelta(days=56)
"""Samples that trends are fitted to."""
AHEAD_DAYS = 28
KEPT = timedelta(minutes=1)


class Option(msgspec.Struct, frozen=True):
    """Replicas for a multiple of the load."""

    factor: float
    replicas: int | None
    """None: no number of them meets the targets, for `limit`."""
    limit: str
    """What one replica fewer would miss."""


class Advice(msgspec.Struct, frozen=True):
    """What the planner says of a base."""

    why_not: str
    """Why there is no plan; empty where there is one."""
    max_requests_per_s: float | None = None
    max_output_tokens_per_s: float | None = None
    utilisation: float | None = None
    replicas: int = 0
    misses: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    helps: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Day:
    """The samples of a day, or what is forecast of it."""

    day: datetime
    mean: float | None
    peak: float | None
    expected: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """A resource of one subject: what was used, and what is expected."""

    resource: Resource
    subject: str
    now: float
    limit: float | None
    days: tuple[Day, ...]
    """Sampled days, then forecast ones."""
    reached: Reached | None
    """None: without a limit or a trend."""
    is_known: bool
    """Whether there are samples enough for a forecast."""


class CapacityReports:
    """Every method is one transaction and may raise DatabaseUnavailable, RedisError."""

    def __init__(
        self,
        database: Database,
        client: redis.asyncio.Redis,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._redis = client
        self._clock = clock
        self._kept: tuple[datetime, list[Outlook]] | None = None

    async def outlooks(self) -> list[Outlook]:
        """Returns every resource that was sampled, by subject; at most `KEPT` old."""
        if self._kept is not None and self._clock() - self._kept[0] < KEPT:
            return self._kept[1]
        async with self._database.read(EVERY_TENANT) as session:
            rows = await CapacityRepository(session).since(self._clock() - SHOWN)
        # Fits take a tenth of a second: streams of tokens do not wait for them.
        found = await asyncio.to_thread(_outlooks, rows)
        self._kept = self._clock(), found
        return found

    async def advice(self) -> dict[str, Advice]:
        """Returns the planner's advice by base."""
        kept: dict[bytes, bytes] = await self._redis.hgetall(ADVICE)  # type: ignore[assignment]
        return {name.decode(): msgspec.msgpack.decode(value, type=Advice) for name, value in kept.items()}


def _outlooks(rows: Sequence[CapacitySample]) -> list[Outlook]:
    series: dict[tuple[str, str], list[CapacitySample]] = {}
    for row in rows:
        if row.resource in BY_ID:
            series.setdefault((row.subject, row.resource), []).append(row)
    order = list(BY_ID)
    keys = sorted(series, key=lambda key: (key[0], order.index(key[1])))
    return [outlook(BY_ID[key[1]], key[0], series[key]) for key in keys]


def outlook(resource: Resource, subject: str, rows: Sequence[CapacitySample]) -> Outlook:
    """Fits the hourly peaks of one series, the oldest first: a limit is reached by them, not by means."""
    hours = [(int(row.hour.timestamp() // 3600), row.peak) for row in rows]
    trend = fit(hours, is_seasonal=resource.is_seasonal)
    last = rows[-1]
    days = _sampled(rows)
    reached = None
    if trend is not None:
        days += _forecast(trend, hours[0][0], last.hour)
        if last.limit:
            reached = trend.reaches(last.limit)
    return Outlook(resource, subject, last.peak, last.limit, tuple(days), reached, is_known=trend is not None)


def _sampled(rows: Sequence[CapacitySample]) -> list[Day]:
    by_day: dict[datetime, list[CapacitySample]] = {}
    for row in rows:
        by_day.setdefault(_midnight(row.hour), []).append(row)
    return [
        Day(
            day,
            sum(row.total for row in own) / sum(row.num_samples for row in own),
            max(row.peak for row in own),
        )
        for day, own in sorted(by_day.items())
    ]


def _forecast(trend: Trend, start: int, last: datetime) -> list[Day]:
    """The highest hour of each day ahead."""
    first = _midnight(last) + timedelta(days=1)
    days = []
    for number in range(AHEAD_DAYS):
        day = first + timedelta(days=number)
        begin = int(day.timestamp() // 3600) - start
        top: Expected = max((trend.at(begin + hour) for hour in range(24)), key=lambda one: one.value)
        days.append(Day(day, None, None, top.value, top.low, top.high))
    return days


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
