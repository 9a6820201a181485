"""An engine on a cluster bills what engines that were placed elsewhere since left on its host's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.journal.inflight_table import InflightTable
from engine.journal.left_behind import bill_left_behind
from engine.journal.meter import SPOOL, TABLE
from engine.journal.spool import Spool
from engine.transport.curve import KeyPair
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    engine_process,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)
from tests.support.journal import usage_event

SILENT = "redis://127.0.0.1:1"
"""Where no Redis answers."""


@pytest.fixture
def other(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    """Another engine of a cluster, on the same host."""
    keys = KeyPair.make().public.hex()
    yield from engine_process(
        folder, redis_url, engine_id="engine-1", endpoint="tcp://127.0.0.1:0", client_keys=keys
    )


async def test_what_a_killed_engine_left_is_billed_once_by_the_next_engine_on_its_host(
    engine: EngineProcess, other: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    received = dict.fromkeys(("a", "b"), 0)

    async def count(name: str) -> None:
        async for chunks in client.submit(submission(name, 5000)):
            received[name] += len(tokens_of(chunks))

    readers = [asyncio.create_task(count(name)) for name in received]
    await until(lambda: min(received.values()) > 20)
    engine.kill()
    await asyncio.gather(*readers, return_exceptions=True)

    other.start()
    await until(lambda: billed(journal_events(redis_url)).keys() == received.keys())
    events = journal_events(redis_url)
    for name, event in billed(events).items():
        assert received[name] <= event.usage.completion_tokens <= received[name] + 2
        assert (event.engine_id, event.finish_reason) == ("engine-0", "error")
    # Until its folder is let go, an engine would end at its start, and be started again by its supervisor.
    await until(lambda: "billed what an engine" in other.read_log())
    engine.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
    assert journal_events(redis_url) == events


async def test_an_engine_that_runs_keeps_its_requests(
    engine: EngineProcess, other: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("a", 500))
    other.start()
    assert len(tokens_of(await read(generation))) == 500
    await until(lambda: other.read_log().count("engine ready") == 2)
    assert billed(journal_events(redis_url))["a"].finish_reason == "length"
    assert engine.read_log().count("left in flight") == 0


def test_usage_waits_on_disk_until_redis_takes_it(tmp_path: Path, redis_url: str) -> None:
    """Requests in flight, and events that Redis had not taken."""
    gone = tmp_path / "engine-0"
    gone.mkdir()
    spool = Spool(gone / SPOOL)
    spool.append([msgspec.msgpack.encode(usage_event("spooled"))])
    spool.close()
    table = InflightTable(gone / TABLE)
    table.admit(usage_event("in-flight"))
    table.close()
    assert not bill_left_behind(tmp_path, "engine-1", SILENT)
    assert journal_events(redis_url) == []
    assert bill_left_behind(tmp_path, "engine-1", redis_url)
    assert [event.request_id for event in journal_events(redis_url)] == ["spooled", "in-flight"]
    assert bill_left_behind(tmp_path, "engine-1", redis_url)
    assert len(journal_events(redis_url)) == 2
