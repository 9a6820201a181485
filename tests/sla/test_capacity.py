"""What engines report becomes samples by the hour, and the samples an outlook."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from sla.capacity.engine_loads import EngineLoad, StoreDisk, measured, report_loads
from sla.capacity.reading import Advice, CapacityReports
from sla.capacity.repository import CapacityRepository, Measured
from sla.capacity.sampling import CapacitySampling, peak_load

NOW = datetime(2026, 11, 17, 12, 0, 30, tzinfo=UTC)


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
async def nothing_sampled(database: Database, redis_client: redis.asyncio.Redis) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("DELETE FROM capacity_samples"))
    await redis_client.flushdb()


def load(at: datetime, engine: str = "engine-0", incarnation: str = "a", **counts: Any) -> EngineLoad:
    fields = {"slots_total": 8, "slots_resident": 3, "blocks_total": 100, "blocks_used": 40} | counts
    return EngineLoad(
        engine_id=engine, incarnation=incarnation, base="llama", at=at.timestamp(), device="cpu", **fields
    )


def values(samples: list[Measured]) -> dict[str, tuple[float, float | None]]:
    return {one.resource: (one.value, one.limit) for one in samples}


def test_rates_are_differences_of_one_start_of_an_engine() -> None:
    later = NOW + timedelta(seconds=10)
    before = {"engine-0": load(NOW, completion_tokens=100, requests=5)}
    now = {"engine-0": load(later, completion_tokens=600, prompt_tokens=50, requests=15)}
    assert values(measured(now, before)) == {
        "kv_blocks": (40, 100),
        "resident_adapters": (3, 8),
        "prompt_tokens_per_s": (5, None),
        "output_tokens_per_s": (50, None),
        "requests_per_s": (1, None),
    }
    restarted = {"engine-0": load(later, incarnation="b", completion_tokens=600)}
    assert "output_tokens_per_s" not in values(measured(restarted, before))
    joined = now | {"engine-1": load(later, engine="engine-1")}
    found = values(measured(joined, before))
    assert found["kv_blocks"] == (80, 200)
    assert "output_tokens_per_s" not in found, "a sum without one of them is too small"


async def test_samples_of_an_hour_are_one_row_with_the_planners_limit(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    sampling = CapacitySampling(database, redis_client, clock)
    await sampling.keep_advice({"llama": Advice("", max_output_tokens_per_s=900.0, max_requests_per_s=9.0)})
    for minute, tokens in enumerate((0, 600, 3000)):
        clock.now = NOW + timedelta(minutes=minute)
        disk = StoreDisk(clock.now.timestamp(), 70, 100)
        await report_loads(redis_client, [load(clock.now, completion_tokens=tokens, requests=minute)], disk)
        await sampling.sample()
    async with database.read(EVERY_TENANT) as session:
        rows = {
            (row.subject, row.resource): row
            for row in await CapacityRepository(session).since(NOW.replace(minute=0, second=0))
        }
    rate = rows["llama", "output_tokens_per_s"]
    assert (rate.num_samples, rate.total, rate.peak, rate.limit) == (2, 50.0, 40.0, 900.0)
    assert rows["llama", "resident_adapters"].num_samples == 3
    assert (rows["", "storage_bytes"].peak, rows["", "storage_bytes"].limit) == (70, 100)
    assert rows["", "database_bytes"].peak > 1e6
    peak = peak_load("llama", [*rows.values()])
    assert peak is not None
    assert peak.output_tokens == pytest.approx(25 / (1 / 60))
    assert peak_load("qwen", [*rows.values()]) is None
    clock.now += timedelta(minutes=10)
    await sampling.sample()
    engines, peaks = await sampling.loads()
    assert engines == {}, "what no process reports any more is gone"
    assert peaks == {}
    clock.now += timedelta(days=401)
    await sampling.tidy()
    assert await CapacityReports(database, redis_client, clock).outlooks() == []


async def test_an_outlook_has_days_a_forecast_and_the_date_of_the_limit(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    clock.now = NOW
    start = NOW.replace(minute=0, second=0) - timedelta(days=20)
    async with database.write(EVERY_TENANT) as session:
        repository = CapacityRepository(session)
        for hour in range(20 * 24):
            used = 1000.0 + hour
            at = start + timedelta(hours=hour)
            await repository.add(at, [Measured("", "storage_bytes", used, 1680.0)])
        await repository.add(start, [Measured("", "database_bytes", 5.0, None)])
        await repository.add(start, [Measured("", "of a later release", 5.0, None)])
    reports = CapacityReports(database, redis_client, clock)
    storage, rows = await reports.outlooks()
    assert (storage.resource.id, storage.now, storage.limit) == ("storage_bytes", 1479.0, 1680.0)
    assert storage.reached is not None
    assert storage.reached.expected == pytest.approx(201, abs=1)
    sampled = [day for day in storage.days if day.peak is not None]
    ahead = [day for day in storage.days if day.expected is not None]
    assert len(sampled) == 21
    assert len(ahead) == 28
    assert sampled[-1].day < ahead[0].day
    assert ahead[-1].expected > ahead[0].expected  # type: ignore[operator]
    assert (rows.is_known, rows.reached) == (False, None)
