"""What waits on an engine's disk: named while it is on its way, a difference when it is late or says
something else. Engines are processes, and so is the Redis that is taken from them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import redis.asyncio
from sqlalchemy import text

from billing.folding import measure
from billing.metering import JournalMeter
from billing.reconciliation import spools
from billing.reconciliation.differences import Report
from billing.reconciliation.rendering import as_json, as_text
from billing.reconciliation.service import ReconciliationService
from billing.repository import LedgerWriter
from cli.local.redis import start_redis
from cli.local.server import LocalServer
from db.session import EVERY_TENANT
from engine.client import EngineClient
from engine.journal.spool import Spool
from engine.protocol import UsageEvent
from tests.billing.reconciliation.conftest import DAY, END, Books
from tests.engine.process.engines import EngineProcess, engine_process, read, submission, tokens_of, until

NOBODY = "ipc:///nowhere/engine.sock"


@pytest.fixture
def own_redis(servers_dir: Path) -> Iterator[LocalServer]:
    """One that a test may take down."""
    directory = Path(tempfile.mkdtemp(prefix="spl-", dir=servers_dir))
    with start_redis(directory, ephemeral=True) as server:
        yield server
    shutil.rmtree(directory)


@pytest.fixture
def engine(own_redis: LocalServer) -> Iterator[EngineProcess]:
    folder = Path(tempfile.mkdtemp(prefix="rs-spools-"))
    for process in engine_process(folder, own_redis.url, null_step_seconds=0.002):
        process.start()
        yield process
    shutil.rmtree(folder)


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.endpoint, "test")
    await client.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
    yield client
    await client.close()


async def compared(
    books: Books, *endpoints: str, url: str, later: timedelta = timedelta(0), silent: bool = False
) -> Report:
    """By a service whose clock is ahead. An engine that does not answer is not waited for long."""
    journal = redis.asyncio.Redis.from_url(url)
    service = ReconciliationService(
        books.database, journal, clock=lambda: datetime.now(UTC) + later, engines=endpoints
    )
    with pytest.MonkeyPatch.context() as patch:
        if silent:
            patch.setattr(spools, "ANSWERED_WITHIN", 1.0)
        report = await service.reconcile(DAY, END)
    await journal.aclose()
    assert await service.find(report.id) == report, "what is kept is what was found"
    return report


async def ended(client: EngineClient, *names: str, tokens: int = 30) -> None:
    """Requests of a tenant's that end while Redis is away."""
    made = [submission(name, tokens, tenant="tnt_a", submitted_at=round(time.time(), 3)) for name in names]
    await asyncio.gather(*(read(client.submit(one)) for one in made))


async def test_usage_on_a_disk_is_on_its_way_until_it_is_late_and_arrives(
    books: Books, engine: EngineProcess, client: EngineClient, own_redis: LocalServer
) -> None:
    own_redis.stop()
    await ended(client, "req-x", "req-y", "req-z")
    report = await compared(books, engine.endpoint, url=own_redis.url)
    assert report.outcomes["spools"].on_its_way == 3
    assert [(one.tenant_id, one.what) for one in sorted(report.on_their_way, key=lambda one: one.what)] == [
        ("tnt_a", f"req-{name} on the disk of engine-0: 3 prompt tokens, 30 completion tokens")
        for name in "xyz"
    ]
    assert not report.differences
    assert report.outcomes["journal"].why_not, "Redis is away, which is another matter"
    assert "req-x on the disk of engine-0" in as_text(report)
    assert 0 <= json.loads(as_json(report))["on_their_way"][0]["age_seconds"] < 600

    late = await compared(books, engine.endpoint, url=own_redis.url, later=timedelta(hours=2))
    assert not late.on_their_way
    assert [(one.tenant_id, one.expected, one.found) for one in late.differences] == [
        ("tnt_a", expected, 0) for _ in "xyz" for expected in (1, 3, 30)
    ]
    assert "req-x on the disk of engine-0: requests, since" in late.differences[0].what

    running = client.submit(submission("req-cut", 9999, tenant="tnt_a", submitted_at=round(time.time(), 3)))
    received = tokens_of(await anext(running))
    engine.kill()
    dead = await compared(books, engine.endpoint, url=own_redis.url, silent=True)
    assert engine.endpoint in dead.outcomes["spools"].why_not
    assert not dead.balanced

    engine.start()
    one_silent = await compared(books, NOBODY, engine.endpoint, url=own_redis.url, silent=False)
    assert NOBODY in one_silent.outcomes["spools"].why_not
    assert one_silent.outcomes["spools"].on_its_way == 4, "what the dead one was at is billed by the next"

    with start_redis(own_redis.directory, ephemeral=True) as back:
        await until(lambda: client.stats is not None and client.ready and not client.stats.journal_spooled)
        month = datetime.now(UTC).date().replace(day=1)
        async with books.database.write(EVERY_TENANT) as session:
            await LedgerWriter(session).ensure_partitions(month, 1)
        journal = redis.asyncio.Redis.from_url(back.url)
        await JournalMeter(books.database, journal, "test").drain()
        await journal.aclose()
        arrived = await compared(books, engine.endpoint, url=back.url)
    assert arrived.outcomes["spools"].on_its_way == 0
    assert arrived.balanced, as_text(arrived)
    async with books.database.read(EVERY_TENANT) as session:
        query = text("SELECT completion_tokens FROM usage_records WHERE request_id = 'req-cut'")
        assert (await session.execute(query)).scalar_one() >= len(received)


async def test_a_disk_that_says_something_else_than_the_ledger_is_a_difference_at_once(
    books: Books, engine: EngineProcess, client: EngineClient, own_redis: LocalServer
) -> None:
    own_redis.stop()
    await ended(client, "req-other", "req-more", "req-less", "req-same", tokens=7)
    on_disk = {
        event.request_id: measure(event)
        for event in (msgspec.msgpack.decode(one, type=UsageEvent) for one in await client.spooled(20))
    }
    damaged = [
        replace(on_disk["req-other"], tenant_id="tnt_b", output_price=5),
        replace(on_disk["req-more"], completion_tokens=9, reasoning_tokens=2),
        replace(on_disk["req-less"], completion_tokens=4),
        on_disk["req-same"],
    ]
    async with books.database.write(EVERY_TENANT) as session:
        writer = LedgerWriter(session)
        await writer.ensure_partitions(datetime.now(UTC).date().replace(day=1), 1)
        await writer.upsert(damaged)
    report = await compared(books, engine.endpoint, url=own_redis.url)
    assert [one.what for one in report.on_their_way] == [
        "req-less on the disk of engine-0: 3 completion tokens"
    ]
    where = "on the disk of engine-0"
    assert sorted((one.what, one.tenant_id, one.expected, one.found) for one in report.differences) == [
        (f"req-more {where}: completion tokens", "tnt_a", 7, 9),
        (f"req-more {where}: reasoning tokens", "tnt_a", 0, 2),
        (f"req-other {where}: output_price: 0 there, 5 in the ledger", "tnt_a", 1, 0),
        (f"req-other {where}: tenant_id: 'tnt_a' there, 'tnt_b' in the ledger", "tnt_a", 1, 0),
    ]


async def test_what_is_no_event_is_named_and_hides_nothing(
    books: Books,
    engine: EngineProcess,
    client: EngineClient,
    own_redis: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_redis.stop()
    await ended(client, "req-x")
    engine.kill()
    spool = Spool(engine.state_dir / "usage.spool")
    spool.append([b"no event"] * 600)  # more than one answer has
    spool.close()
    engine.start()
    report = await compared(books, engine.endpoint, url=own_redis.url)
    assert report.outcomes["spools"].on_its_way == 1
    assert len(report.differences) == 600
    assert report.differences[0].what.startswith("an event on an engine's disk: not a usage event")
    monkeypatch.setattr(spools, "MOST_HELD", 300)
    report = await compared(books, engine.endpoint, url=own_redis.url)
    assert 300 <= len(report.differences) < 601, "of very many the oldest are looked at"
    assert [one.what.partition(" on the disk")[0] for one in report.on_their_way] == [
        "req-x",
        "what comes after 300 events",
    ]
