"""Fixtures: a folder whose path fits a socket's, an engine in it, clients that are closed again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.engine.process.engines import EngineProcess, engine_process

Connect = Callable[..., Awaitable[EngineClient]]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rs-engine-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=[0, 1], ids=["in turn", "overlapped"])
def engine(folder: Path, redis_url: str, request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """A running null engine, 10 ms a step; steps as on a CPU, and as on a GPU."""
    for process in engine_process(folder, redis_url, null_depth=request.param):
        process.start()
        yield process


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects clients, waits until the engine is ready, closes them at the end."""
    clients: list[EngineClient] = []

    async def connect_to(engine: EngineProcess, ready_seconds: float = 60, **options: int) -> EngineClient:
        client = EngineClient(engine.endpoint, f"test-{len(clients)}", **options)
        clients.append(client)
        await client.start()
        async with asyncio.timeout(ready_seconds):
            await client.wait_ready()
        return client

    yield connect_to
    for client in clients:
        await client.close()
