"""From a request's metadata to its receipt: sealed, stored once, and sent before the request goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.request_ids import new_request_id
from billing.request_metadata import recorder as recording
from billing.request_metadata.content import MetadataSealer, RequestMetadata
from billing.request_metadata.intake import MetadataIntake
from billing.request_metadata.recorder import STREAM, MetadataRecorder
from billing.service import UsageReports
from cli.local.redis import start_redis
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage
from tests.support.booked import START, request, write
from tests.support.waiting import eventually

SEALER = MetadataSealer("a secret of at least thirty-two characters")
NAMED = RequestMetadata("user-77", "hash-of-77", {"ticket": "17", "empty": ""})
AT = START + 0.654321


@asynccontextmanager
async def recording_to(client: redis.asyncio.Redis) -> AsyncIterator[MetadataRecorder]:
    recorder = MetadataRecorder(client, SEALER)
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.close()


async def stored(database: Database) -> list[tuple[str, str, bytes]]:
    async with database.read(EVERY_TENANT) as session:
        found = await session.execute(text("SELECT tenant_id, request_id, sealed FROM request_metadata"))
        return [(*row,) for row in found.all()]


async def test_a_receipt_has_what_its_request_was_named_with(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    name, other = new_request_id("cmpl", AT), new_request_id("chatcmpl", AT)
    events = [request("tnt_a", AT, usage=Usage(1, 0, 1), name=f"{name}-{place}") for place in range(2)]
    await write(database, [*events, request("tnt_a", AT, usage=Usage(1, 0, 1), name=other)])
    async with recording_to(redis_client) as recorder:
        await recorder.keep(NAMED, "tnt_a", name)
        assert await redis_client.xlen(STREAM) == 1, "Redis has it when the request goes on"
        await recorder.keep(NAMED, "tnt_a", name)  # a line of a batch that runs again
    assert b"user-77" not in b"".join(fields[b"row"] for _, fields in await redis_client.xrange(STREAM)), (
        "sealed in Redis too"
    )
    intake = MetadataIntake(database, redis_client, "one")
    assert await intake.drain() == 2
    [(tenant_id, request_id, sealed)] = await stored(database)
    assert (tenant_id, request_id) == ("tnt_a", name)
    assert b"user-77" not in sealed

    receipts = UsageReports(database, SEALER).receipts
    for id in (name, f"{name}-1"):
        shown = await receipts.of("tnt_a", id)
        assert (shown["user"], shown["safety_identifier"]) == ("user-77", "hash-of-77")
        assert shown["metadata"] == {"ticket": "17", "empty": ""}
    plain = await receipts.of("tnt_a", other)
    assert (plain["user"], plain["safety_identifier"], plain["metadata"]) == (None, None, None)
    with pytest.raises(ValueError, match="cannot be decrypted"):
        SEALER.open(sealed, "tnt_a", other)
    with pytest.raises(ValueError, match="cannot be decrypted"):
        SEALER.open(sealed, "tnt_b", name)


async def test_malformed_entries_hold_up_no_others(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    for fields in ({"row": b"\x93"}, {"other": b""}):
        await redis_client.xadd(STREAM, fields)
    async with recording_to(redis_client) as recorder:
        await recorder.keep(NAMED, "tnt_a", "not-an-id")
        await recorder.keep(NAMED, "tnt_a", new_request_id("chatcmpl", AT))
    assert await MetadataIntake(database, redis_client, "one").drain() == 4
    assert len(await stored(database)) == 1


async def test_while_redis_is_away_requests_do_not_wait_and_memory_is_bounded(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "RETRY_SECONDS", 0.05)
    server = start_redis(tmp_path)
    client = redis.asyncio.Redis.from_url(server.url)
    names = [new_request_id("chatcmpl", AT) for _ in range(6)]
    async with recording_to(client) as recorder:
        try:
            await recorder.keep(NAMED, "tnt_a", names[0])
            monkeypatch.setattr(recording, "MAX_HELD_BYTES", 4 * 200)
            server.stop()
            async with asyncio.timeout(5.0):
                for name in names[1:]:
                    await recorder.keep(NAMED, "tnt_a", name)
            assert recorder.num_dropped > 0
            server = start_redis(tmp_path)
            kept = len(names) - recorder.num_dropped
            await eventually(lambda: not recorder._waiting)
            await MetadataIntake(database, client, "one").drain()
        finally:
            await client.aclose()
            server.stop()
    assert {row[1] for row in await stored(database)} == {*names[:kept]}


async def test_the_stream_does_not_grow_without_workers(
    redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_IN_STREAM", 3)
    async with recording_to(redis_client) as recorder:
        for _ in range(8):
            await recorder.keep(NAMED, "tnt_a", new_request_id("chatcmpl", AT))
        assert await redis_client.xlen(STREAM) == 3
        assert len(recorder._waiting) == 5
