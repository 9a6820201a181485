from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis.asyncio

from cli.local.redis import start_redis
from db.cache import (
    DISCONNECTED_TTL,
    EVERYTHING,
    RENEW_FROM,
    RENEW_TOGETHER,
    RETRY_AFTER,
    Lifetimes,
    RowCache,
)
from db.errors import DatabaseUnavailable
from tests.support.waiting import eventually

CHANNEL = "test:invalidate"


@dataclass
class Rows:
    """A table, as the loader sees it."""

    rows: dict[str, str] = field(default_factory=dict)
    num_loads: int = 0
    away: bool = False
    gate: asyncio.Event | None = None

    async def load(self, group: str, key: str) -> str | None:
        self.num_loads += 1
        value = self.rows.get(f"{group}/{key}")
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise DatabaseUnavailable("away")
        return value


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table() -> Rows:
    return Rows({"a/1": "one", "a/2": "two", "b/1": "uno"})


@pytest.fixture
async def cache(table: Rows, redis_client: redis.asyncio.Redis) -> AsyncIterator[RowCache[str]]:
    made = RowCache(redis_client, CHANNEL, table.load)
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


async def test_one_load_serves_many(cache: RowCache[str], table: Rows) -> None:
    assert [await cache.get("a", "1") for _ in range(5)] == ["one"] * 5
    assert await asyncio.gather(*(cache.get("a", "2") for _ in range(100))) == ["two"] * 100
    assert table.num_loads == 2


async def test_what_is_not_there_is_remembered_too(cache: RowCache[str], table: Rows) -> None:
    assert [await cache.get("a", "9") for _ in range(5)] == [None] * 5
    assert table.num_loads == 1


async def test_invalidation_reaches_other_processes_within_a_second(
    cache: RowCache[str], table: Rows, redis_url: str
) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as other_client:
        other = RowCache(other_client, CHANNEL, table.load)
        assert await cache.get("a", "1") == "one"
        assert await cache.get("b", "1") == "uno"
        table.rows["a/1"] = "new"
        await other.invalidate("a")

        async def seen() -> bool:
            return await cache.get("a", "1") == "new"

        assert await eventually(seen) < 1.0
    loads = table.num_loads
    assert await cache.get("b", "1") == "uno"
    assert table.num_loads == loads, "other groups stay"


async def test_everything_can_be_forgotten(cache: RowCache[str], table: Rows) -> None:
    await cache.get("a", "1")
    await cache.get("b", "1")
    await cache.invalidate(EVERYTHING)
    await cache.get("a", "1")
    await cache.get("b", "1")
    assert table.num_loads == 4


async def test_a_load_overtaken_by_an_invalidation_is_not_kept(cache: RowCache[str], table: Rows) -> None:
    table.gate = asyncio.Event()
    early = asyncio.create_task(cache.get("a", "1"))  # reads the old row, then is slow
    await eventually(lambda: table.num_loads == 1)
    table.rows["a/1"] = "new"
    cache.forget("a")
    late = asyncio.create_task(cache.get("a", "1"))  # must not join the load that read the old row
    await eventually(lambda: table.num_loads == 2)
    table.gate.set()
    await early
    assert await late == "new"
    assert await cache.get("a", "1") == "new"


async def test_a_waiter_that_gives_up_does_not_fail_the_others(cache: RowCache[str], table: Rows) -> None:
    table.gate = asyncio.Event()
    first, second = (asyncio.create_task(cache.get("a", "1")) for _ in range(2))
    await eventually(lambda: table.num_loads == 1)
    first.cancel()
    await asyncio.sleep(0)
    table.gate.set()
    assert await second == "one"
    assert table.num_loads == 1


async def test_entries_grow_old(table: Rows, redis_client: redis.asyncio.Redis) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, lifetimes=Lifetimes(found=30, missing=5), clock=clock)
    cache._last_seen_at = float("inf")  # as if the channel were heard all along
    await cache.get("a", "1")
    await cache.get("a", "9")
    clock.now += 4.9
    await cache.get("a", "1")
    await cache.get("a", "9")
    assert table.num_loads == 2
    clock.now += 0.2
    await cache.get("a", "1")
    await cache.get("a", "9")
    assert table.num_loads == 3, "absence is trusted for 5 s"
    clock.now += 25
    await cache.get("a", "1")
    assert table.num_loads == 4, "presence for 30 s"


async def test_what_is_in_use_is_renewed_ahead_of_its_end(
    table: Rows, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, lifetimes=Lifetimes(found=30), clock=clock)
    cache._last_seen_at = float("inf")
    await cache.get("a", "1")
    table.rows["a/1"] = "anew"
    clock.now += 30 * RENEW_FROM[1]
    table.gate = asyncio.Event()
    assert await cache.get("a", "1") == "one", "nobody waits for it"
    assert await cache.get("a", "1") == "one"
    await eventually(lambda: table.num_loads == 2)
    clock.now += RETRY_AFTER + 0.1
    assert await cache.get("a", "1") == "one"
    await asyncio.sleep(RENEW_TOGETHER + 0.1)
    assert table.num_loads == 2, "one load at a time"
    table.gate.set()
    await eventually(lambda: not cache._loading)
    assert await cache.get("a", "1") == "anew"
    clock.now += 29
    table.gate, table.away = None, True
    assert await cache.get("a", "1") == "anew"
    await eventually(lambda: table.num_loads == 3 and not cache._loading)
    assert await cache.get("a", "1") == "anew"
    await asyncio.sleep(RENEW_TOGETHER + 0.1)
    assert table.num_loads == 3, "one that failed is not tried again at once"
    await cache.close()


async def test_what_was_loaded_in_one_moment_is_renewed_in_many(
    table: Rows, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, lifetimes=Lifetimes(found=30), clock=clock)
    cache._last_seen_at = float("inf")
    for number in range(200):
        table.rows[f"a/{number}"] = "one"
        await cache.get("a", str(number))
    num_due = []
    # A millisecond on that side of the bounds where no time may lie.
    for share, beyond in ((RENEW_FROM[0], -0.001), (sum(RENEW_FROM) / 2, 0.0), (RENEW_FROM[1], 0.001)):
        then = clock.now + 30 * share + beyond
        num_due.append(sum(entry.renew_at <= then for entry in cache._present.values()))
    assert num_due[0] == 0
    assert 50 < num_due[1] < 150
    assert num_due[2] == 200
    await cache.close()


async def test_what_is_renewed_at_about_the_same_time_is_loaded_together(
    table: Rows, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, lifetimes=Lifetimes(found=30), clock=clock)
    cache._last_seen_at = float("inf")
    first = await cache.get("a", "1")
    for key in ("a/2", "b/1"):
        await cache.get(*key.split("/"))
    table.gate = asyncio.Event()
    clock.now += 30 * RENEW_FROM[1]
    table.rows["a/1"] = "".join(["on", "e"])  # equal, and another object
    for key in ("a/1", "a/2", "b/1"):
        await cache.get(*key.split("/"))
        await asyncio.sleep(0.01)
    cache.forget("b")
    assert table.num_loads == 3, "they wait for each other"
    await eventually(lambda: table.num_loads == 5)
    assert len(cache._loading) == 2, "what was forgotten meanwhile is not renewed"
    table.gate.set()
    await eventually(lambda: not cache._loading)
    assert await cache.get("a", "1") is first, "what has not changed stays the same object"
    await cache.close()


async def test_unheard_entries_live_one_second(table: Rows, redis_client: redis.asyncio.Redis) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, clock=clock)  # never started
    await cache.get("a", "1")
    await cache.get("a", "9")
    clock.now += DISCONNECTED_TTL * 0.9
    await cache.get("a", "1")
    await cache.get("a", "9")
    assert table.num_loads == 2
    clock.now += DISCONNECTED_TTL * 0.2
    await cache.get("a", "1")
    await cache.get("a", "9")
    assert table.num_loads == 4


async def test_guesses_push_nothing_out(redis_client: redis.asyncio.Redis, table: Rows) -> None:
    cache = RowCache(redis_client, CHANNEL, table.load, max_entries=2, max_missing=10)
    await cache.get("a", "1")
    for guess in range(1000):
        assert await cache.get("guess", str(guess)) is None
    loads = table.num_loads
    await cache.get("a", "1")
    assert table.num_loads == loads
    assert len(cache._missing) == 10


async def test_the_least_recently_used_goes_first(redis_client: redis.asyncio.Redis, table: Rows) -> None:
    cache = RowCache(redis_client, CHANNEL, table.load, max_entries=2)
    for group, key in (("a", "1"), ("a", "2"), ("a", "1"), ("b", "1")):
        await cache.get(group, key)
    loads = table.num_loads
    await cache.get("a", "1")
    assert table.num_loads == loads
    await cache.get("a", "2")
    assert table.num_loads == loads + 1


async def test_while_postgres_is_away_known_rows_serve(
    table: Rows, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, lifetimes=Lifetimes(found=30, stale=600), clock=clock)
    cache._last_seen_at = float("inf")
    await cache.get("a", "1")
    table.away = True
    clock.now += 60
    assert await cache.get("a", "1") == "one"
    loads = table.num_loads
    assert await cache.get("a", "1") == "one"
    assert table.num_loads == loads, "PostgreSQL is not asked at every request"
    with pytest.raises(DatabaseUnavailable):
        await cache.get("a", "2")
    clock.now += 600
    with pytest.raises(DatabaseUnavailable):
        await cache.get("a", "1")


async def test_while_postgres_is_away_what_was_invalidated_does_not_serve(
    table: Rows, redis_client: redis.asyncio.Redis
) -> None:
    clock = Clock()
    cache = RowCache(redis_client, CHANNEL, table.load, clock=clock)
    cache._last_seen_at = float("inf")
    await cache.get("a", "1")
    table.away = True
    cache.forget("a")
    with pytest.raises(DatabaseUnavailable):
        await cache.get("a", "1")


async def test_with_both_away_nothing_old_serves(table: Rows, redis_client: redis.asyncio.Redis) -> None:
    clock = Clock()
    cache = RowCache(
        redis_client, CHANNEL, table.load, clock=clock
    )  # not heard: a revocation may have been missed
    await cache.get("a", "1")
    table.away = True
    clock.now += DISCONNECTED_TTL * 1.1
    with pytest.raises(DatabaseUnavailable):
        await cache.get("a", "1")


async def test_it_listens_again_to_a_redis_that_came_back(servers_dir: Path, table: Rows) -> None:
    directory = servers_dir / "cache"
    server = start_redis(directory, ephemeral=True)
    client = redis.asyncio.Redis.from_url(server.url)
    cache = RowCache(client, CHANNEL, table.load)
    try:
        await cache.start()
        await eventually(lambda: cache.listening)
        assert await cache.get("a", "1") == "one"
        server.kill()
        await eventually(lambda: not cache.listening)
        table.rows["a/1"] = "changed unheard"
        server = start_redis(directory, ephemeral=True)
        await eventually(lambda: cache.listening)
        assert await cache.get("a", "1") == "changed unheard", (
            "what was cached before the gap is not trusted after it"
        )
        table.rows["a/1"] = "changed again"
        await cache.invalidate("a")
        assert await cache.get("a", "1") == "changed again"
    finally:
        await cache.close()
        await client.aclose()
        server.stop()


async def test_a_redis_that_hangs_is_noticed(
    cache: RowCache[str], table: Rows, redis_client: redis.asyncio.Redis, pause_redis: Callable[[bool], None]
) -> None:
    """A connection that stays open and silent is worse than one that breaks: nobody says so."""
    pause_redis(True)
    try:
        assert await eventually(lambda: not cache.listening) < 3
    finally:
        pause_redis(False)
    await eventually(lambda: cache.listening)


async def test_closing_outlasts_a_task_that_loses_a_cancellation(redis_client: redis.asyncio.Redis) -> None:
    async def load(group: str, key: str) -> str | None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue  # what a timeout that expires in the same moment does
        await asyncio.sleep(60)
        return None

    cache = RowCache[str](redis_client, CHANNEL, load)
    waiter = asyncio.create_task(cache.get("a", "1"))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
