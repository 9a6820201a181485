"""Samples survive a database that is away, are counted once, and the board shows what is known."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text

from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from sla.incidents.service import Incidents
from sla.measures import Counts
from sla.repository import SlaWriter
from sla.status import sampling as sampling_module
from sla.status.board import Day, Snapshot, StatusBoard
from sla.status.components import ProcessReport
from sla.status.sampling import (
    SAMPLES,
    KnownComponents,
    StatusSampling,
    latest_sample,
    report_process,
    withdraw_process,
)
from tenants.actors import OPERATOR
from tenants.service import TenantService

NOW = datetime.now(UTC).replace(hour=12, minute=0, second=30, microsecond=0)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Away:
    """A database that does not answer."""

    @asynccontextmanager
    async def read(self, tenant: str) -> Any:
        raise DatabaseUnavailable("away")
        yield

    write = read


AWAY: Any = Away()


class Hanging:
    """A database that accepts a transaction and never answers."""

    @asynccontextmanager
    async def read(self, tenant: str) -> Any:
        await asyncio.Event().wait()
        yield

    write = read


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
async def nothing_sampled(database: Database, redis_client: redis.asyncio.Redis) -> None:
    async with database.write(EVERY_TENANT) as session:
        for table in ("status_samples", "status_days", "sla_minutes"):
            await session.execute(text(f"DELETE FROM {table}"))
        await session.execute(text("UPDATE incidents SET is_public = false"))
    await redis_client.flushdb()


async def reported(client: redis.asyncio.Redis, clock: Clock, name: str = "api-0", **bases: bool) -> None:
    await report_process(client, name, ProcessReport(clock().timestamp(), (), bases or {"llama": True}))


async def sample(sampling: StatusSampling) -> dict[str, Any]:
    return await sampling.sample(oldest_job_s=0.0, metering_lag_s=0.0)


async def shown(database: Database, client: redis.asyncio.Redis, clock: Clock) -> Snapshot:
    board = StatusBoard(database, client, clock=clock)
    await board.refresh()
    return board.snapshot


async def test_samples_are_counted_once_and_wait_while_the_database_is_away(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    there = StatusSampling(database, redis_client, clock)
    away = StatusSampling(AWAY, redis_client, clock)
    await reported(redis_client, clock)
    assert set((await sample(there)).values()) == {"operational"}
    kept = await redis_client.lrange(SAMPLES, 0, -1)
    assert await there.store() == 1
    await redis_client.rpush(SAMPLES, *kept)  # stored, but not removed: the worker died in between
    clock.now += timedelta(minutes=1)
    states = await away.sample(oldest_job_s=None, metering_lag_s=0.0)
    assert states["uploads"] == "down"
    with pytest.raises(DatabaseUnavailable):
        await away.store()
    assert await there.store() == 2
    assert await redis_client.llen(SAMPLES) == 0
    snapshot = await shown(database, redis_client, clock)
    days = {one.id: one.days[-1] for one in snapshot.components}
    assert days["api"] == Day(NOW.date(), operational=2)
    assert days["uploads"] == Day(NOW.date(), operational=1, down=1)
    assert days["billing"] == Day(NOW.date(), operational=1, degraded=1)
    assert {one.id: one.uptime for one in snapshot.components}["uploads"] == 0.5


async def test_a_database_that_hangs_is_away(
    redis_client: redis.asyncio.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "PATIENCE_S", 0.05)
    hanging: Any = Hanging()
    sampling = StatusSampling(hanging, redis_client, clock)
    await reported(redis_client, clock)
    assert (await sample(sampling))["uploads"] == "down"
    with pytest.raises(TimeoutError):
        await sampling.store()
    assert await redis_client.llen(SAMPLES) == 1
    snapshot = await shown(hanging, redis_client, clock)
    assert {one.id: one.state for one in snapshot.components}["uploads"] == "down", "seen before it is stored"


async def test_failures_of_all_tenants_and_silent_processes_are_seen(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    tenant = await TenantService(database, redis_client).create_tenant("acme")
    async with database.write(EVERY_TENANT) as session:
        minute = NOW.replace(second=0) - timedelta(minutes=2)
        await SlaWriter(session).add({(tenant.id, "default", minute): Counts(100, 60)})
    sampling = StatusSampling(database, redis_client, clock)
    await reported(redis_client, clock)
    await reported(redis_client, clock, "api-1", llama=False, qwen=True)
    assert await sample(sampling) == {
        "api": "down",
        "base:llama": "degraded",
        "base:qwen": "operational",
        "uploads": "operational",
        "console": "operational",
        "billing": "operational",
    }
    clock.now += timedelta(minutes=10)
    silent = await sample(sampling)
    assert (silent["api"], silent["base:llama"], silent["console"]) == ("down", "down", "down")
    await reported(redis_client, clock, "api-2")
    assert "base:qwen" not in await sample(sampling)
    await withdraw_process(redis_client, "api-2")
    assert (await sample(sampling))["api"] == "down"


async def test_the_last_known_state_is_shown_with_its_age(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    sampling = StatusSampling(database, redis_client, clock)
    assert (await shown(AWAY, redis_client, clock)) == Snapshot()
    await reported(redis_client, clock)
    await sample(sampling)
    await sampling.store()
    first = await shown(database, redis_client, clock)
    assert first.state == "operational"
    # Another process starts while the database is away: it has the history that the first one has read.
    clock.now += timedelta(minutes=2)
    later = await shown(AWAY, redis_client, clock)
    assert later.history_at == first.history_at == NOW
    assert later.components == first.components
    # Redis is away: the database has the last sample.
    await redis_client.flushdb()
    assert (await shown(database, redis_client, clock)).sampled_at == NOW.replace(second=0)
    # Nothing was sampled for a while: what is known is old, and says nothing of now.
    clock.now += timedelta(minutes=2)
    old = await shown(database, redis_client, clock)
    assert old.state is None
    assert old.components[0].days == first.components[0].days


async def test_incidents_and_maintenance_are_on_the_board(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    incidents, sampling = Incidents(database), StatusSampling(database, redis_client, clock)
    await incidents.open("Not for tenants", "major", OPERATOR, components=["api"])
    await incidents.open(
        "Slow uploads", "minor", OPERATOR, is_public=True, note="We look.", components=["uploads"]
    )
    soon = datetime.now(UTC) + timedelta(hours=1)
    planned = await incidents.open(
        "New disks",
        "minor",
        OPERATOR,
        is_public=True,
        began_at=soon,
        planned_until=soon + timedelta(hours=2),
        components=["base:llama"],
    )
    assert [one.title for one in await incidents.public()] == ["Slow uploads"], "it has not begun"
    clock.now = datetime.now(UTC)
    await reported(redis_client, clock)
    assert (await sample(sampling))["base:llama"] == "operational"
    snapshot = await shown(database, redis_client, clock)
    assert [one.title for one in snapshot.incidents] == ["New disks", "Slow uploads"]
    assert [update.text for update in snapshot.incidents[1].updates] == ["We look."]
    assert {one.id: one.state for one in snapshot.components}["uploads"] == "degraded", "by the incident"
    clock.now = soon + timedelta(minutes=1)
    await reported(redis_client, clock)
    assert (await sample(sampling))["base:llama"] == "maintenance"
    await sampling.store()
    days = {one.id: one for one in (await shown(database, redis_client, clock)).components}
    assert (days["base:llama"].days[-1].maintenance, days["base:llama"].uptime) == (1, 1.0)
    ended = await incidents.close(planned.id, OPERATOR)
    assert ended.ended_at == soon, "cancelled before it began"
    assert (await sample(sampling))["base:llama"] == "operational"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"planned_until": NOW - timedelta(days=1)}, "planned_until"),
        (
            {
                "began_at": datetime(2099, 1, 2, tzinfo=UTC),
                "planned_until": datetime(2099, 1, 1, tzinfo=UTC),
            },
            "planned_until",
        ),
        ({"components": ["tenants"]}, "components"),
        ({"components": [f"base:{number}" for number in range(51)]}, "components"),
    ],
)
async def test_a_plan_that_cannot_be_is_refused_by_its_field(
    database: Database, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        await Incidents(database).open("x", "minor", OPERATOR, **given)


async def test_old_samples_are_forgotten_and_days_are_kept(
    database: Database, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    sampling = StatusSampling(database, redis_client, clock)
    assert await sample(sampling) == {}, "a service that nothing was heard of is not down"
    await reported(redis_client, clock)
    await sample(sampling)
    await sampling.store()
    clock.now += timedelta(days=4)
    await sampling.tidy()
    async with database.read(EVERY_TENANT) as session:
        assert (await session.execute(text("SELECT count(*) FROM status_samples"))).scalar_one() == 0
        assert (await session.execute(text("SELECT count(*) FROM status_days"))).scalar_one() == 5
    clock.now += timedelta(days=400)
    await sampling.tidy()
    async with database.read(EVERY_TENANT) as session:
        assert (await session.execute(text("SELECT count(*) FROM status_days"))).scalar_one() == 0


async def test_components_can_be_named_before_there_is_a_sample(
    redis_client: redis.asyncio.Redis, database: Database, clock: Clock
) -> None:
    assert set(await KnownComponents(redis_client).titles()) == {"api", "uploads", "console", "billing"}
    await reported(redis_client, clock)
    await sample(StatusSampling(database, redis_client, clock))
    assert (await KnownComponents(redis_client).titles())["base:llama"] == "llama"
    assert (await latest_sample(redis_client)) is not None


def test_a_day_has_the_colour_of_what_mattered() -> None:
    day = date(2026, 11, 1)
    assert Day(day).state is None
    assert Day(day, operational=1439, down=1).state == "degraded"
    assert Day(day, operational=1434, down=6).state == "down"
    assert Day(day, operational=1435, degraded=5).state == "operational"
    assert Day(day, operational=600, maintenance=840).state == "maintenance"
