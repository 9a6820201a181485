"""Restarts reach /metrics, also those of the Redis that keeps their count."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry, generate_latest

from api.metrics import polled
from api.metrics.restarts import RestartsCollector
from cli import restarts
from cli.local.redis import start_redis
from cli.local.server import LocalServer
from cli.restarts import RestartCounter
from tests.support.waiting import eventually


@pytest.fixture
def own_redis(servers_dir: Path) -> Iterator[list[LocalServer]]:
    """One that a test may stop and start again: the last is the one that runs."""
    directory = Path(tempfile.mkdtemp(prefix="restarts-", dir=servers_dir))
    servers = [start_redis(directory)]
    yield servers
    servers[-1].stop()
    shutil.rmtree(directory)


async def shown(collector: RestartsCollector) -> dict[str, str]:
    await collector.refresh()
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return dict(line.split(" ") for line in lines if line.startswith("rootstock_process_restarts_total"))


async def test_a_restart_is_counted_once_redis_takes_it(
    own_redis: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polled, "ASK_EVERY", 0.0)
    monkeypatch.setattr(restarts, "_RETRY_S", 0.02)
    url = own_redis[0].url
    counter = RestartCounter(lambda: url)
    counter.begin(["engine", "redis"])
    async with redis.asyncio.Redis.from_url(url) as client:
        collector = RestartsCollector(client)
        await eventually(lambda: counter._sending is not None and counter._sending.done(), 10)
        engine, store = (
            f'rootstock_process_restarts_total{{process="{name}"}}' for name in ("engine", "redis")
        )
        assert await shown(collector) == {engine: "0.0", store: "0.0"}
        own_redis[0].stop()
        counter.restarted("redis")
        counter.restarted("engine")
        counter.restarted("engine")
        assert await shown(collector) == {engine: "0.0", store: "0.0"}, "the last answer stays"
        own_redis.append(start_redis(own_redis[0].directory))
        await eventually(lambda: counter._sending is not None and counter._sending.done(), 10)
        assert await shown(collector) == {engine: "2.0", store: "1.0"}
    await counter.close()
