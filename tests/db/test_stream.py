"""A stream's producer: it fills the stream up to a bound, and says why it did not."""

from __future__ import annotations

from pathlib import Path

import redis.asyncio

from cli.local.redis import start_redis
from db.stream import StreamConsumer, StreamProducer

STREAM = "rootstock:some"


async def test_entries_are_added_until_the_stream_is_full_and_again_once_they_are_taken(
    redis_client: redis.asyncio.Redis,
) -> None:
    producer = StreamProducer(redis_client, STREAM, max_entries=3)
    entries = [{"row": b"1"}, {"row": b"2"}]
    assert await producer.add(entries) is None
    assert await producer.add(entries) is None, "a batch that has begun is added as a whole"
    assert await producer.add(entries) == f"3 entries wait in {STREAM}, no worker takes them"
    assert await redis_client.xlen(STREAM) == 4
    taken = []

    async def take(batch: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        taken.extend(fields[b"row"] for _, fields in batch)

    assert await StreamConsumer(redis_client, STREAM, "group", "one").drain(take, 1) == 4
    assert taken == [b"1", b"2", b"1", b"2"]
    assert await producer.add(entries) is None
    assert await redis_client.xlen(STREAM) == 2


async def test_a_server_that_is_away_is_the_reason(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    client = redis.asyncio.Redis.from_url(server.url)
    producer = StreamProducer(client, STREAM, max_entries=1)
    try:
        server.stop()
        assert await producer.add([{"row": b"1"}]) == "ConnectionError"
        server = start_redis(tmp_path)
        assert await producer.add([{"row": b"1"}]) is None
        server.stop()
        assert await producer.add([{"row": b"1"}]) == "ConnectionError", "asking for its length fails, too"
    finally:
        await client.aclose()
        server.stop()
