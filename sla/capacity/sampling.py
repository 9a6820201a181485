"""Samples the use of resources every few minutes. Runs in workers, which ask the planner too
(`worker.capacity_advice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import redis.asyncio

from db.session import EVERY_TENANT, Database
from sla.capacity.engine_loads import EngineLoad, LoadReader, measured
from sla.capacity.models import CapacitySample
from sla.capacity.reading import ADVICE, Advice
from sla.capacity.repository import CapacityRepository, Measured
from sla.capacity.resources import DATABASE, OUTPUT_RATE, PROMPT_RATE, REQUEST_RATE, STORAGE

KEPT = timedelta(days=400)
PEAK_OF = timedelta(days=7)
_RATES = (REQUEST_RATE.id, PROMPT_RATE.id, OUTPUT_RATE.id)


class PeakLoad(msgspec.Struct, frozen=True):
    """Means of the busiest hour."""

    requests_per_s: float
    prompt_tokens: float
    """By request."""
    output_tokens: float


class CapacitySampling:
    """`clock` gives the time in UTC."""

    def __init__(
        self,
        database: Database,
        client: redis.asyncio.Redis,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._redis = client
        self._loads = LoadReader(client)
        self._clock = clock

    async def sample(self) -> int:
        """Stores a sample of every resource; returns how many. Raises RedisError, DatabaseUnavailable."""
        now = self._clock()
        loads, before = await self._loads.fresh(now.timestamp()), await self._loads.before()
        advice = await self._advice()
        samples = [_limited(one, advice) for one in measured(loads, before)]
        disk = await self._loads.disk(now.timestamp())
        if disk is not None:
            samples.append(Measured("", STORAGE.id, float(disk.used), float(disk.total)))
        async with self._database.write(EVERY_TENANT) as session:
            repository = CapacityRepository(session)
            samples.append(Measured("", DATABASE.id, float(await repository.database_bytes()), None))
            await repository.add(now.replace(minute=0, second=0, microsecond=0), samples)
        await self._loads.keep(loads)
        return len(samples)

    async def loads(self) -> tuple[dict[str, list[EngineLoad]], dict[str, PeakLoad | None]]:
        """Returns the engines of every base, and the load of its busiest hour lately. Raises RedisError,
        DatabaseUnavailable.
        """
        now = self._clock()
        engines: dict[str, list[EngineLoad]] = {}
        for load in (await self._loads.fresh(now.timestamp())).values():
            engines.setdefault(load.base, []).append(load)
        async with self._database.read(EVERY_TENANT) as session:
            rows = await CapacityRepository(session).since(now - PEAK_OF)
        return engines, {base: peak_load(base, rows) for base in engines}

    async def keep_advice(self, advice: Mapping[str, Advice]) -> None:
        """Replaces what the planner said before. Raises RedisError."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(ADVICE)
            for base, one in advice.items():
                pipe.hset(ADVICE, base, msgspec.msgpack.encode(one))
            await pipe.execute()

    async def tidy(self) -> None:
        """Forgets old samples. Raises DatabaseUnavailable."""
        async with self._database.write(EVERY_TENANT) as session:
            await CapacityRepository(session).forget(self._clock() - KEPT)

    async def _advice(self) -> dict[str, Advice]:
        kept: dict[bytes, bytes] = await self._redis.hgetall(ADVICE)  # type: ignore[assignment]
        return {name.decode(): msgspec.msgpack.decode(value, type=Advice) for name, value in kept.items()}


def _limited(one: Measured, advice: dict[str, Advice]) -> Measured:
    """Gives a rate the limit that the planner computed."""
    found = advice.get(one.subject)
    if found is None:
        return one
    limits = {REQUEST_RATE.id: found.max_requests_per_s, OUTPUT_RATE.id: found.max_output_tokens_per_s}
    return one._replace(limit=limits[one.resource]) if one.resource in limits else one


def peak_load(base: str, rows: Sequence[CapacitySample]) -> PeakLoad | None:
    """Returns the means of the hour with the most output tokens; None without one."""
    hours: dict[datetime, dict[str, float]] = {}
    for row in rows:
        if row.subject == base and row.resource in _RATES:
            hours.setdefault(row.hour, {})[row.resource] = row.total / row.num_samples
    whole = [hour for hour in hours.values() if len(hour) == len(_RATES) and hour[REQUEST_RATE.id] > 0]
    if not whole:
        return None
    top = max(whole, key=lambda hour: hour[OUTPUT_RATE.id])
    requests = top[REQUEST_RATE.id]
    return PeakLoad(requests, top[PROMPT_RATE.id] / requests, top[OUTPUT_RATE.id] / requests)
