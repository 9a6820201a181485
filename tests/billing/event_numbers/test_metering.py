"""The meter keeps which numbered events came in, in the transaction that writes their rows."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import redis.asyncio

from billing.metering import JournalMeter
from db.session import Database
from engine.protocol import ISSUED_STREAM, JOURNAL_STREAM, EventNumber, IssuedEvents, UsageEvent
from tests.billing.event_numbers.test_ranges import numbered
from tests.support.journal import NOW, usage_event
from tests.support.ledger import query

Rows = list[dict[str, Any]]


@pytest.fixture
async def meter(database: Database, redis_client: redis.asyncio.Redis) -> JournalMeter:
    return JournalMeter(database, redis_client, "meter-1", batch_size=7, stale_after=0.0)


async def write(client: redis.asyncio.Redis, *events: UsageEvent) -> None:
    for event in events:
        await client.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})


async def ranges(database: Database) -> list[tuple[int, int, int, int]]:
    found = await query(database, "SELECT * FROM usage_event_ranges ORDER BY first_number")
    names = ("first_number", "last_number", "tokens_before", "tokens_after")
    return [tuple(row[name] for name in names) for row in found]  # type: ignore[misc]


async def test_numbers_come_in_in_any_order_and_twice(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    events = numbered([5] * 40)
    shuffled = [*events, *events[:20]]
    random.Random(4).shuffle(shuffled)
    await write(redis_client, *[one for one in shuffled if one is not events[16]])
    await meter.drain()
    assert await ranges(database) == [(1, 16, 0, 80), (18, 40, 85, 200)]
    await write(redis_client, events[16])
    await meter.drain()
    assert await ranges(database) == [(1, 40, 0, 200)]


async def test_an_event_that_no_row_can_be_made_of_is_no_gap(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    good, bad, refused = numbered([5, 5, 5])
    bad = msgspec.structs.replace(bad, submitted_at=float("nan"))
    refused = msgspec.structs.replace(refused, submitted_at=NOW + 86400 * 365 * 40, tenant="\ud800")
    await write(redis_client, good, bad)
    assert (await meter.drain()).num_malformed == 1
    assert await ranges(database) == [(1, 2, 0, 10)]


async def test_events_without_numbers_leave_no_trace(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event())
    assert (await meter.drain()).num_requests == 1
    assert await ranges(database) == []


async def test_incarnations_are_kept_apart(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    one = EventNumber(1, 0, 5)
    await write(redis_client, usage_event("a", number=one), usage_event("b", number=one, incarnation="two"))
    await meter.drain()
    assert await ranges(database) == [(1, 1, 0, 5), (1, 1, 0, 5)]


async def test_what_an_incarnation_issued_is_kept_and_only_grows(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    async def tell(*said: IssuedEvents) -> Rows:
        for one in said:
            await redis_client.xadd(ISSUED_STREAM, {b"e": msgspec.msgpack.encode(one)})
        await meter.drain()
        assert await redis_client.xlen(ISSUED_STREAM) == 0
        return await query(database, "SELECT incarnation, events, tokens FROM engine_incarnations")

    await redis_client.xadd(ISSUED_STREAM, {b"e": b"\xc1"})
    first = await tell(IssuedEvents("engine-0", "one", 5, 50, NOW))
    assert first == [{"incarnation": "one", "events": 5, "tokens": 50}]
    more = IssuedEvents("engine-0", "one", 7, 70, NOW + 1)
    assert await tell(more, IssuedEvents("engine-0", "one", 6, 60, NOW + 2)) == [
        {"incarnation": "one", "events": 7, "tokens": 70}
    ]
