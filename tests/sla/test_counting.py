"""From observations to rows: each counted once, whatever is sent, read or killed twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisAway
from sqlalchemy import text
from structlog.testing import capture_logs

from cli.local.redis import start_redis
from db.session import EVERY_TENANT, Database
from engine.protocol import PriorityClass
from sla.folding import SlaFolding
from sla.measures import Counts
from sla.recorder import STREAM, SlaRecorder
from sla.repository import SlaRepository
from tenants.tier_terms import DEFAULTS

NOON = datetime(2026, 5, 17, 12, 0, 30, tzinfo=UTC)
TIERS = (PriorityClass.PRIORITY, PriorityClass.DEFAULT)


class Clock:
    def __init__(self) -> None:
        self.now = NOON.timestamp()

    def __call__(self) -> float:
        return self.now


def observe(recorder: SlaRecorder, tenant: str, tier: PriorityClass, seconds: float = 0.1) -> None:
    recorder.answered(tenant, tier, DEFAULTS[tier], seconds, 80.0)


async def totals(database: Database, tenant: str, month: int = 5) -> dict[str, Counts]:
    async with database.read(tenant) as session:
        repository = SlaRepository(session, tenant)
        return await repository.totals(
            datetime(2026, month, 1, tzinfo=UTC), datetime(2026, month + 1, 1, tzinfo=UTC)
        )


async def test_counts_of_several_processes_and_minutes_add_up(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    recorders = [SlaRecorder(redis_client, clock=clock) for _ in range(3)]
    for _ in range(4):
        for recorder in recorders:
            observe(recorder, "ten_a", PriorityClass.PRIORITY)
            observe(recorder, "ten_a", PriorityClass.DEFAULT, 3.0)
            recorder.failed("ten_b", PriorityClass.DEFAULT)
            assert await recorder.flush()
        clock.now += 60
    folding = SlaFolding(database, redis_client, "one", batch_size=5)
    assert await folding.drain() == 12
    assert await redis_client.xlen(STREAM) == 0
    found = await totals(database, "ten_a")
    assert found.keys() == set(TIERS)
    assert found["priority"].requests == found["priority"].first_tokens_in_time == 12
    assert (found["default"].requests, found["default"].first_tokens_in_time) == (12, 0)
    assert sum(found["priority"].first_token_histogram) == sum(found["priority"].output_rate_histogram) == 12
    assert (await totals(database, "ten_b"))["default"].failed == 12
    async with database.read(EVERY_TENANT) as session:
        minutes = await session.execute(text("SELECT count(*) FROM sla_minutes"))
        assert minutes.scalar_one() == 3 * 4


async def test_a_batch_that_comes_twice_counts_once(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    """Its sender did not hear that it had arrived; or its reader died between commit and acknowledgement."""
    recorder = SlaRecorder(redis_client, clock=Clock())
    observe(recorder, "ten_a", PriorityClass.DEFAULT)
    await recorder.flush()
    [(_, fields)] = await redis_client.xrange(STREAM)
    await redis_client.xadd(STREAM, fields)
    await SlaFolding(database, redis_client, "one").drain()
    await redis_client.xadd(STREAM, fields)
    await SlaFolding(database, redis_client, "two").drain()
    assert (await totals(database, "ten_a"))["default"].requests == 1


async def test_two_readers_at_once_count_each_batch_once(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = SlaRecorder(redis_client, clock=Clock())
    for number in range(60):
        observe(recorder, f"ten_{number % 7}", PriorityClass.DEFAULT)
        await recorder.flush()
    readers = [SlaFolding(database, redis_client, f"r{k}", batch_size=4, stale_after=0) for k in range(3)]
    await asyncio.gather(*(reader.drain(max_batches=40) for reader in readers))
    async with database.read(EVERY_TENANT) as session:
        total = await session.execute(text("SELECT sum(requests) FROM sla_minutes"))
        assert total.scalar_one() == 60


async def test_what_a_reader_that_died_had_taken_is_counted(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = SlaRecorder(redis_client, clock=Clock())
    observe(recorder, "ten_a", PriorityClass.DEFAULT)
    await recorder.flush()
    await redis_client.xgroup_create(STREAM, "sla", id="0")
    await redis_client.xreadgroup("sla", "dead", {STREAM: ">"})
    assert await SlaFolding(database, redis_client, "patient", stale_after=60).drain() == 0
    assert await SlaFolding(database, redis_client, "prompt", stale_after=0).drain() == 1
    assert (await totals(database, "ten_a"))["default"].requests == 1


async def test_malformed_batches_are_dropped_and_others_counted(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = SlaRecorder(redis_client, clock=Clock())
    observe(recorder, "ten_a", PriorityClass.DEFAULT)
    await recorder.flush()
    [(_, good)] = await redis_client.xrange(STREAM)
    bad: list[dict[Any, Any]] = [
        {b"source": b"x"},
        good | {b"counts": b"\xc1"},
        good | {b"number": b"many"},
    ]
    for fields in bad:
        await redis_client.xadd(STREAM, fields)
    with capture_logs() as lines:
        assert await SlaFolding(database, redis_client, "one").drain() == 4
    assert [line["event"] for line in lines] == 3 * ["batch of counts is malformed"]
    assert (await totals(database, "ten_a"))["default"].requests == 1


async def test_while_redis_is_away_counts_are_kept_and_then_handed_on_once(
    database: Database, servers_dir: Any, redis_client: redis.asyncio.Redis
) -> None:
    directory = servers_dir / "sla-redis"
    server = start_redis(directory)
    client = redis.asyncio.Redis.from_url(server.url)
    recorder = SlaRecorder(client, clock=Clock())
    try:
        observe(recorder, "ten_a", PriorityClass.DEFAULT)
        assert await recorder.flush()
        server.stop()
        for _ in range(3):
            observe(recorder, "ten_a", PriorityClass.DEFAULT)
            assert not await recorder.flush()
        server = start_redis(directory)
        assert await recorder.flush()
        await SlaFolding(database, client, "one").drain()
    finally:
        await client.aclose()
        server.stop()
    assert (await totals(database, "ten_a"))["default"].requests == 4


async def test_unsent_counts_are_bounded_and_dropped_ones_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        there = False

        async def xadd(self, *_: Any) -> None:
            if not self.there:
                raise RedisAway

    monkeypatch.setattr("sla.recorder.MOST_HELD", 10)
    away = Away()
    recorder = SlaRecorder(away, clock=Clock())  # type: ignore[arg-type]
    for number in range(25):
        observe(recorder, f"ten_{number}", PriorityClass.DEFAULT)
    with capture_logs() as lines:
        assert not await recorder.flush()
        away.there = True
        assert await recorder.flush()
    assert [(line["log_level"], line.get("requests")) for line in lines] == [("warning", None), ("error", 15)]


async def test_partitions_ahead_and_old_batches(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = SlaRecorder(redis_client, clock=Clock())
    observe(recorder, "ten_a", PriorityClass.DEFAULT)
    await recorder.flush()
    folding = SlaFolding(database, redis_client, "one")
    await folding.drain()
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE sla_batches SET counted_at = now() - interval '8 days'"))
    await folding.tidy(NOON)
    async with database.read(EVERY_TENANT) as session:
        assert (await session.execute(text("SELECT count(*) FROM sla_batches"))).scalar_one() == 0
        where = await session.execute(text("SELECT tableoid::regclass::text FROM sla_minutes"))
        assert where.scalar_one() == "sla_minutes_y2026m05", "moved out of the default partition"


async def test_closing_hands_on_the_rest(redis_client: redis.asyncio.Redis) -> None:
    recorder = SlaRecorder(redis_client, clock=Clock())
    await recorder.start()
    observe(recorder, "ten_a", PriorityClass.DEFAULT)
    await recorder.close()
    assert await redis_client.xlen(STREAM) == 1
