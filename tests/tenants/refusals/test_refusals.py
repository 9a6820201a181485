"""From a refused call to its row: never lost without being counted, never twice, never another tenant's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisAway
from sqlalchemy import text
from structlog.testing import capture_logs

from cli.local.redis import start_redis
from db.session import EVERY_TENANT, Database
from tenants.refusals import recorder as recording
from tenants.refusals.intake import KEPT_DAYS, RefusalIntake
from tenants.refusals.recorder import (
    MAX_LISTED_PER_MINUTE,
    STREAM,
    HourCount,
    RefusalRecorder,
    RefusedRequest,
    storable,
)
from tenants.refusals.repository import RefusedFilter
from tenants.refusals.service import CodeCount, RefusedRequests
from tests.support.killed_refusals import BATCH_SIZE, INSTANTS
from tests.support.programs import end_killed

NOON = datetime(2026, 5, 17, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def refused(number: int = 0, tenant: str = "ten_a", **fields: Any) -> RefusedRequest:
    at = fields.pop("at", NOON) + timedelta(microseconds=number)
    given: dict[str, Any] = {
        "tenant_id": tenant,
        "at": round(at.timestamp() * 1_000_000),
        "request_id": f"req_{number:08}",
        "status": 429,
        "code": "rate_limit_exceeded",
        "message": "Too many requests.",
        "key_id": "key_1",
    }
    return RefusedRequest(**given | fields)


async def listed(
    database: Database, tenant: str = "ten_a", limit: int = 1000, **wanted: Any
) -> tuple[list[str], list[CodeCount]]:
    """Ids, the latest first, and counts."""
    calls, counts = await RefusedRequests(database).page(
        tenant, NOON - DAY, NOON + DAY, wanted=RefusedFilter(**wanted), limit=limit
    )
    return [call.request_id for call in calls], counts


async def test_calls_are_listed_with_everything_that_was_recorded(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = RefusalRecorder(redis_client)
    whole = refused(
        1,
        project_id="proj_1",
        user_id="user_1",
        method="POST",
        route="/v1/chat/completions",
        path="/v1/chat/completions",
        model="base:x",
        service_tier="flex",
        generation_id="chatcmpl-1",
    )
    recorder.record(whole)
    recorder.record(refused(2, tenant="ten_b"))
    assert await recorder.flush()
    assert await RefusalIntake(database, redis_client, "one").drain() == 3, "two calls, and the counts"
    assert await redis_client.xlen(STREAM) == 0
    (call,) = await RefusedRequests(database).search("ten_a", "req_00000001")
    found = {name: getattr(call, name) for name in RefusedRequest.__struct_fields__}
    assert found | {"at": whole.at} == msgspec.structs.asdict(whole)
    assert call.at == NOON + timedelta(microseconds=1)
    assert await RefusedRequests(database).search("ten_a", "req_00000002") == []
    assert await RefusedRequests(database).call("ten_b", call.at, call.request_id) is None
    assert await listed(database) == (["req_00000001"], [CodeCount(429, "rate_limit_exceeded", 1, 0)])


async def test_what_arrives_twice_is_stored_once(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    """Its sender did not see the result, or a worker died between commit and acknowledgement."""
    recorder = RefusalRecorder(redis_client)
    recorder.record(refused(1))
    await recorder.flush()
    early = [fields for _, fields in await redis_client.xrange(STREAM)]
    recorder.record(refused(2))
    await recorder.flush()
    await RefusalIntake(database, redis_client, "one").drain()
    for fields in early:  # and counts that are older than those stored
        await redis_client.xadd(STREAM, fields)
    await RefusalIntake(database, redis_client, "two").drain()
    assert await listed(database) == (
        ["req_00000002", "req_00000001"],
        [CodeCount(429, "rate_limit_exceeded", 2, 0)],
    )


async def test_a_client_in_a_retry_loop_is_listed_up_to_a_limit_and_counted_beyond(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = RefusalRecorder(redis_client)
    for number in range(3 * MAX_LISTED_PER_MINUTE):
        recorder.record(refused(number))
    recorder.record(refused(0, tenant="ten_b"))
    recorder.record(refused(1, at=NOON + timedelta(minutes=1)))
    await recorder.flush()
    await RefusalIntake(database, redis_client, "one").drain()
    ids, counts = await listed(database)
    assert len(ids) == MAX_LISTED_PER_MINUTE + 1
    (count,) = counts
    assert (count.refused, count.unlisted) == (3 * MAX_LISTED_PER_MINUTE + 1, 2 * MAX_LISTED_PER_MINUTE)
    assert (await listed(database, "ten_b"))[1] == [CodeCount(429, "rate_limit_exceeded", 1, 0)]


async def test_counts_of_several_processes_and_flushes_add_up(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorders = [RefusalRecorder(redis_client) for _ in range(3)]
    intake = RefusalIntake(database, redis_client, "one")
    for number in range(4):
        for place, recorder in enumerate(recorders):
            recorder.record(refused(10 * number + place))
            recorder.record(refused(10 * number + place + 5, status=404, code="model_not_found"))
            await recorder.flush()
        await intake.drain()
    ids, counts = await listed(database)
    assert len(ids) == 24
    assert counts == [
        CodeCount(404, "model_not_found", 12, 0),
        CodeCount(429, "rate_limit_exceeded", 12, 0),
    ]


async def test_while_redis_is_away_calls_are_kept_up_to_a_limit_and_then_counted(
    database: Database, servers_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING", 5)
    directory = servers_dir / "refusals-redis"
    server = start_redis(directory)
    client = redis.asyncio.Redis.from_url(server.url)
    recorder = RefusalRecorder(client)
    try:
        recorder.record(refused(1))
        assert await recorder.flush()
        server.stop()
        for number in range(2, 10):
            recorder.record(refused(number))
            assert not await recorder.flush()
        assert recorder.num_dropped == 3
        server = start_redis(directory)
        assert await recorder.flush()
        await RefusalIntake(database, client, "one").drain()
    finally:
        await client.aclose()
        server.stop()
    ids, counts = await listed(database)
    assert ids == [f"req_{number:08}" for number in range(6, 0, -1)]
    assert counts == [CodeCount(429, "rate_limit_exceeded", 9, 3)]


async def test_the_stream_does_not_grow_without_workers(
    redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_IN_STREAM", 4)
    monkeypatch.setattr(recording, "MAX_WAITING", 3)
    recorder = RefusalRecorder(redis_client)
    for number in range(12):
        recorder.record(refused(number))
        await recorder.flush()
    assert await redis_client.xlen(STREAM) == 4
    assert recorder.num_dropped == 7, "of 12, 2 are in the stream with their counts, and 3 wait"


async def test_recording_never_fails(redis_client: redis.asyncio.Redis) -> None:
    class Away:
        def pipeline(self, **_: Any) -> None:
            raise RedisAway

    recorder = RefusalRecorder(Away())  # type: ignore[arg-type]
    await recorder.start()
    recorder.record(refused())
    assert not await recorder.flush()
    await recorder.close()


async def test_closing_sends_the_rest(redis_client: redis.asyncio.Redis) -> None:
    recorder = RefusalRecorder(redis_client)
    await recorder.start()
    recorder.record(refused())
    await recorder.close()
    assert await redis_client.xlen(STREAM) == 2


async def test_malformed_entries_are_dropped_and_others_stored(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    bad: list[dict[Any, Any]] = [
        {"row": b""},
        {"call": b"\xc1"},
        {"call": msgspec.msgpack.encode(refused(1, message="a\x00b"))},
        {"call": msgspec.msgpack.encode(refused(1, tenant=""))},
        {"call": msgspec.msgpack.encode(msgspec.structs.replace(refused(1), at=2**62))},
        {"counts": msgspec.msgpack.encode([1])},
    ]
    good = {"call": msgspec.msgpack.encode(refused(2))}
    for fields in (*bad[:3], good, *bad[3:]):
        await redis_client.xadd(STREAM, fields)
    with capture_logs() as lines:
        assert await RefusalIntake(database, redis_client, "one").drain() == 7
    assert [line["event"] for line in lines] == 6 * ["malformed entry of refused requests"]
    assert (await listed(database))[0] == ["req_00000002"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\ud800", "?"),
        ("x" * 300, "x" * 200),
        (None, ""),
        (7, ""),
        (["base"], ""),
    ],
)
def test_texts_of_clients_are_made_storable(given: Any, stored: str) -> None:
    assert storable(given) == stored


async def test_filters_and_pages(database: Database, redis_client: redis.asyncio.Redis) -> None:
    recorder = RefusalRecorder(redis_client)
    for number in range(30):
        recorder.record(
            refused(
                number // 2,  # two at the same microsecond
                request_id=f"req_{number:08}",
                status=(429, 404)[number % 2],
                code=("rate_limit_exceeded", "model_not_found")[number % 2],
                model=("base", "base:x", "base:x@2")[number % 3],
                key_id=f"key_{number % 5}",
            )
        )
    await recorder.flush()
    await RefusalIntake(database, redis_client, "one").drain()
    ids = [f"req_{number:08}" for number in range(30)][::-1]
    assert (await listed(database))[0] == ids
    assert (await listed(database, status=404))[0] == ids[::2]
    assert (await listed(database, code="rate_limit_exceeded"))[0] == ids[1::2]
    assert len((await listed(database, models=("base:x@2",)))[0]) == 20, "any version may have been meant"
    assert len((await listed(database, models=("base:x",)))[0]) == 10
    assert len((await listed(database, key_ids=("key_1", "key_2")))[0]) == 12
    assert len((await listed(database, excluded_key_ids=("key_1", "key_2")))[0]) == 18
    pages: list[str] = []
    position = None
    while True:
        calls, _ = await RefusedRequests(database).page(
            "ten_a", NOON - DAY, NOON + DAY, before=position, limit=7
        )
        if not calls:
            break
        pages += [call.request_id for call in calls]
        position = calls[-1].at, calls[-1].request_id
    assert pages == ids


async def test_days_are_created_ahead_and_dropped_after_a_month(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = RefusalRecorder(redis_client)
    for days in (0, KEPT_DAYS, KEPT_DAYS + 1, KEPT_DAYS + 2):
        recorder.record(refused(days, at=NOON - days * DAY))
    await recorder.flush()
    intake = RefusalIntake(database, redis_client, "one")
    assert await intake.tidy(NOON - (KEPT_DAYS + 1) * DAY) == 0
    await intake.drain()
    first, *others = ["refused_requests_y2026m04d16", "refused_requests_y2026m04d17"]
    default = "refused_requests_default"
    assert await partitions(database) == [default, first, *others, default]
    assert await intake.tidy(NOON) == 1
    assert await partitions(database) == [*others, "refused_requests_y2026m05d17"], "none is left in default"
    async with database.read(EVERY_TENANT) as session:
        hours = await session.execute(text("SELECT count(*) FROM refused_hours"))
        assert hours.scalar_one() == 2
    assert await intake.tidy(NOON) == 0
    assert await intake.tidy(NOON + DAY) == 1


async def partitions(database: Database) -> list[str]:
    """Of the calls, the earliest first."""
    async with database.read(EVERY_TENANT) as session:
        where = await session.execute(
            text("SELECT tableoid::regclass::text FROM refused_requests ORDER BY at")
        )
        return list(where.scalars())


@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_worker_that_is_killed_loses_none_and_stores_none_twice(
    database: Database, redis_client: redis.asyncio.Redis, database_url: str, redis_url: str, instant: str
) -> None:
    recorder = RefusalRecorder(redis_client)
    for number in range(3 * BATCH_SIZE):
        recorder.record(refused(number))
    await recorder.flush()
    await end_killed("tests.support.killed_refusals", database_url, redis_url, instant)
    stored = len((await listed(database))[0])
    assert stored == (2 * BATCH_SIZE if instant == "committed" else BATCH_SIZE)
    await RefusalIntake(database, redis_client, "next", stale_after=0).drain()
    ids, counts = await listed(database)
    assert len(ids) == len(set(ids)) == 3 * BATCH_SIZE
    assert counts == [CodeCount(429, "rate_limit_exceeded", 3 * BATCH_SIZE, 0)]
    assert await redis_client.xlen(STREAM) == 0


async def test_counts_survive_the_end_of_their_hour(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    recorder = RefusalRecorder(redis_client)
    for minutes in (58, 59, 60, 61):
        recorder.record(refused(minutes, at=NOON + timedelta(minutes=minutes)))
        await recorder.flush()
    sent = [fields[b"counts"] for _, fields in await redis_client.xrange(STREAM) if b"counts" in fields]
    last = [msgspec.msgpack.decode(counts, type=list[HourCount])[-1] for counts in sent]
    assert [count.refused for count in last] == [1, 2, 1, 2]
    await RefusalIntake(database, redis_client, "one").drain()
    assert (await listed(database))[1] == [CodeCount(429, "rate_limit_exceeded", 4, 0)]
