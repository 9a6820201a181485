"""/readyz: Redis must take writes, and the disks here and at the engine must have room."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry, generate_latest

from api.metrics.disk import DiskCollector
from api.readiness import EngineDisk, LocalDisk, RedisWritable
from engine.protocol import EngineStats

STATS = EngineStats("engine-0", "i1", disk_free_bytes=3_000_000, disk_total_bytes=9_000_000)


async def test_a_redis_that_takes_writes_is_ready(redis_client: redis.asyncio.Redis) -> None:
    assert await RedisWritable(redis_client).check() is None
    [key] = await redis_client.keys("*")
    assert 0 < await redis_client.ttl(key) <= 60, "nothing is left behind"


@pytest.mark.parametrize(
    ("break_it", "mend_it", "says"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read only replica"),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "maxmemory"),
    ],
    ids=["replica", "full"],
)
async def test_a_redis_that_only_answers_pings_is_not_ready(
    redis_client: redis.asyncio.Redis, break_it: tuple[str, ...], mend_it: tuple[str, ...], says: str
) -> None:
    await redis_client.execute_command(*break_it)
    try:
        assert await redis_client.ping()
        assert re.fullmatch(f"refuses writes: .*{says}.*", await RedisWritable(redis_client).check() or "")
    finally:
        await redis_client.execute_command(*mend_it)
    assert await RedisWritable(redis_client).check() is None


@pytest.mark.parametrize(
    "check_with",
    [
        lambda folder, least: LocalDisk(folder / "to-come", least),
        lambda folder, least: EngineDisk(lambda: [STATS], least),
    ],
    ids=["here", "engine"],
)
async def test_a_disk_below_the_minimum_is_not_ready(
    tmp_path: Path, check_with: Callable[[Path, int], Any]
) -> None:
    assert await check_with(tmp_path, 1).check() is None
    why = await check_with(tmp_path, 1 << 62).check()
    assert re.fullmatch(r"[\d,]+ MB free, 4,611,686,018,427 MB required", why), "and no path: anybody may ask"


@pytest.mark.parametrize("stats", [None, EngineStats("engine-0", "i1")], ids=["none yet", "older"])
async def test_an_engine_that_does_not_tell_its_disk_is_not_held_against_it(
    stats: EngineStats | None,
) -> None:
    assert await EngineDisk(lambda: [] if stats is None else [stats], 1 << 62).check() is None


async def test_while_one_engine_s_disk_has_room_requests_can_be_served() -> None:
    roomy = msgspec.structs.replace(
        STATS, engine_id="engine-1", disk_free_bytes=1 << 62, disk_total_bytes=1 << 63
    )
    assert await EngineDisk(lambda: [STATS, roomy], 1 << 40).check() is None
    assert await EngineDisk(lambda: [STATS, STATS], 1 << 40).check() is not None


def test_disks_are_exported(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(DiskCollector(tmp_path / "to-come", lambda: [STATS]))
    shown = generate_latest(registry).decode()
    assert 'rootstock_disk_free_bytes{directory="engine",replica="engine-0"} 3e+06' in shown
    assert 'rootstock_disk_size_bytes{directory="engine",replica="engine-0"} 9e+06' in shown
    assert 'rootstock_disk_size_bytes{directory="objects",replica=""}' in shown
