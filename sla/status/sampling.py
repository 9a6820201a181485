"""Samples the states of components every minute, for the status page.

API processes report themselves in Redis. A worker derives the states from the reports and its own
measurements, appends them to a list in Redis, and moves the list into the database: while that is away the
samples wait, so that its absence is in the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from sla.status.components import (
    BASE,
    TITLES,
    ProcessReport,
    Served,
    Signals,
    State,
    assess,
    title_of,
    under_maintenance,
)
from sla.status.repository import StatusRepository
from tenants.tier_terms import DEFAULTS, Terms

REPORTS = "rootstock:status:processes"
"""Redis hash: the latest report of each API process, by its name."""
SAMPLES = "rootstock:status:samples"
"""Redis list of samples that are not in the database yet."""
LATEST = "rootstock:status:latest"
"""Redis key: the latest sample."""
FRESH_S = 60.0
"""Age up to which a process's report counts."""
FORGOTTEN_S = 3600.0
MOST_WAITING = 3 * 24 * 60
"""Samples kept in Redis while the database is away; older ones are dropped."""
WINDOW = timedelta(minutes=5)
PATIENCE_S = 5.0
"""For the database: one that hangs is as good as away, and must not hold up the samples that say so."""
SAMPLES_KEPT = timedelta(days=3)
DAYS_KEPT = timedelta(days=400)

_encode = msgspec.msgpack.encode
_reports = msgspec.msgpack.Decoder(ProcessReport)


class Sample(msgspec.Struct, frozen=True):
    """The states of all components in a minute."""

    minute: int
    """Unix seconds of its start."""
    states: dict[str, State]


_samples = msgspec.msgpack.Decoder(Sample)


async def report_process(client: redis.asyncio.Redis, name: str, report: ProcessReport) -> None:
    """Stores the report of the API process `name`. Raises RedisError."""
    await client.hset(REPORTS, name, _encode(report))


async def withdraw_process(client: redis.asyncio.Redis, name: str) -> None:
    """Removes the report of a process that ends in an orderly way. Raises RedisError."""
    await client.hdel(REPORTS, name)


async def latest_sample(client: redis.asyncio.Redis) -> Sample | None:
    """Returns the latest sample, also one that is not in the database yet. Raises RedisError."""
    kept: Any = await client.get(LATEST)
    return None if kept is None else _samples.decode(kept)


class KnownComponents:
    """Lists the components that incidents can name."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._redis = client

    async def titles(self) -> dict[str, str]:
        """Returns the title of each component of the latest sample, by its id; while Redis is away or there
        is no sample, of those that every service has.
        """
        sample = None
        with contextlib.suppress(RedisError, OSError):
            sample = await latest_sample(self._redis)
        return dict(TITLES) if sample is None else {name: title_of(name) for name in sample.states}


class StatusSampling:
    """Samples, and stores samples. `clock` gives the time in UTC."""

    def __init__(
        self,
        database: Database,
        client: redis.asyncio.Redis,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._redis = client
        self._clock = clock

    async def sample(self, *, oldest_job_s: float | None, metering_lag_s: float) -> dict[str, State]:
        """Samples the current minute; returns nothing before the first API process of a new service has
        reported. `oldest_job_s`: None where the database was away. Raises RedisError.
        """
        now = self._clock()
        minute = now.replace(second=0, microsecond=0)
        processes, before = await self._reports(now.timestamp()), await latest_sample(self._redis)
        if not processes and before is None:
            return {}
        served: dict[str, Served] = {}
        maintained: list[frozenset[str]] = []
        has_database = oldest_job_s is not None
        try:
            async with asyncio.timeout(PATIENCE_S), self._database.read(EVERY_TENANT) as session:
                repository = StatusRepository(session)
                served = await repository.served(minute - WINDOW)
                maintained = [frozenset(one) for one in await repository.maintained(now)]
        except (DatabaseUnavailable, TimeoutError):
            has_database = False
        terms: dict[str, Terms] = {tier.value: found for tier, found in DEFAULTS.items()}
        signals = Signals(
            processes=processes,
            served=[(terms[tier], counted) for tier, counted in served.items() if tier in terms],
            has_database=has_database,
            oldest_job_s=oldest_job_s or 0.0,
            metering_lag_s=metering_lag_s,
        )
        # A base that no process reports any more is gone once no process is silent.
        lost = (
            () if processes or before is None else [name for name in before.states if name.startswith(BASE)]
        )
        states = assess(signals, [name.removeprefix(BASE) for name in lost])
        for components in maintained:
            states = under_maintenance(states, components or None)
        encoded = _encode(Sample(int(minute.timestamp()), states))
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.rpush(SAMPLES, encoded)
            pipe.ltrim(SAMPLES, -MOST_WAITING, -1)
            pipe.set(LATEST, encoded)
            await pipe.execute()
        return states

    async def store(self) -> int:
        """Moves the samples that wait into the database; returns how many. Raises RedisError,
        DatabaseUnavailable, TimeoutError.
        """
        waiting: list[Any] = await self._redis.lrange(SAMPLES, 0, -1)
        if not waiting:
            return 0
        samples = [_samples.decode(one) for one in waiting]
        async with asyncio.timeout(PATIENCE_S), self._database.write(EVERY_TENANT) as session:
            await StatusRepository(session).add(
                [
                    (datetime.fromtimestamp(sample.minute, UTC), component, state)
                    for sample in samples
                    for component, state in sample.states.items()
                ]
            )
        # Removed after the commit: what is stored twice is counted once.
        async with self._redis.pipeline(transaction=False) as pipe:
            for one in waiting:
                pipe.lrem(SAMPLES, 1, one)
            await pipe.execute()
        return len(samples)

    async def tidy(self) -> None:
        """Forgets old samples and days. Raises DatabaseUnavailable."""
        now = self._clock()
        async with self._database.write(EVERY_TENANT) as session:
            await StatusRepository(session).forget(now - SAMPLES_KEPT, (now - DAYS_KEPT).date())

    async def _reports(self, now: float) -> list[ProcessReport]:
        kept: dict[bytes, bytes] = await self._redis.hgetall(REPORTS)  # type: ignore[assignment]
        found = {name: _reports.decode(value) for name, value in kept.items()}
        for name, report in found.items():
            if now - report.at > FORGOTTEN_S:
                await self._redis.hdel(REPORTS, name.decode())
        return [report for report in found.values() if now - report.at <= FRESH_S]
