"""Fixtures: engines without a model, and a set of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from routing.replica_set import ReplicaSet
from tests.engine.process.engines import EngineProcess

StartEngine = Callable[..., EngineProcess]
Connect = Callable[..., Awaitable[ReplicaSet]]


@pytest.fixture
def start_replica(redis_url: str) -> Iterator[StartEngine]:
    """Starts null engines, 5 ms a step, each in a folder of its own; ends them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="rs-"))
    started: list[EngineProcess] = []

    def start(number: int, **settings: object) -> EngineProcess:
        own = folder / str(number)
        own.mkdir(exist_ok=True)
        known = {"engine_id": f"engine-{number}", "null_step_seconds": 0.005, "max_rows": 32}
        process = EngineProcess(own, redis_url, **(known | settings))
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.end()
    shutil.rmtree(folder)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to engines, and waits until `ready` of them (all) take requests."""
    made: list[ReplicaSet] = []

    async def connect_to(
        *engines: EngineProcess, ready: int | None = None, base: str | None = None
    ) -> ReplicaSet:
        engine_set = ReplicaSet([engine.endpoint for engine in engines], "test", base=base)
        made.append(engine_set)
        await engine_set.start()
        wanted = len(engines) if ready is None else ready
        async with asyncio.timeout(60):
            while engine_set.num_serving < wanted:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        return engine_set

    yield connect_to
    for engine_set in made:
        await engine_set.close()
