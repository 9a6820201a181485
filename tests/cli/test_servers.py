"""Private servers that die are started again, and again after a start that failed; the operator's are not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cli import servers
from cli.local.server import LocalServerError
from cli.servers import Store, Stores
from tests.support.waiting import eventually


class FakeServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.alive = True

    def stop(self) -> None:
        self.alive = False


class Starts:
    """Counts starts; those whose number is in `failing` fail."""

    def __init__(self, failing: set[int]) -> None:
        self.failing = failing
        self.servers: list[FakeServer | None] = []

    def __call__(self, data: Path) -> Any:
        number = len(self.servers)
        if number in self.failing:
            self.servers.append(None)
            raise LocalServerError("the disk is full")
        server = FakeServer(f"redis://{number}")
        self.servers.append(server)
        return server


def stores(tmp_path: Path, redis: Starts, told: list[str]) -> Stores:
    return Stores(
        tmp_path,
        told.append,
        redis=Store("Redis", "TEST_REDIS_URL", redis),
        postgres=Store("PostgreSQL", "TEST_DB_URL", Starts(set())),
    )


async def test_a_dead_server_is_started_again_even_when_that_fails_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_WATCH_S", 0.01)
    told: list[str] = []
    starts = Starts({1, 2})
    both = stores(tmp_path, starts, told)
    both.redis.start(tmp_path)
    both.postgres.start(tmp_path)
    both.keep_alive()
    first = starts.servers[0]
    assert first is not None
    first.alive = False
    await eventually(lambda: both.redis.server is not None and both.redis.server.alive, 5)
    assert len(starts.servers) == 4
    assert both.redis.url == "redis://3"
    assert sum("the disk is full" in line for line in told) == 2
    await both.stop()
    assert both.redis.server is None


async def test_the_operators_server_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_WATCH_S", 0.01)
    monkeypatch.setenv("TEST_REDIS_URL", "redis://elsewhere")
    starts, told = Starts(set()), list[str]()
    both = stores(tmp_path, starts, told)
    both.redis.start(tmp_path)
    both.postgres.start(tmp_path)
    both.keep_alive()
    await asyncio.sleep(0.1)
    await both.stop()
    assert both.redis.url == "redis://elsewhere"
    assert starts.servers == []
    assert told == []
