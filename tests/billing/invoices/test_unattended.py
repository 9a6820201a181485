"""Closing as the worker does it: from the journal's age to what the tenant is told; and killed in between."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import text
from structlog.testing import capture_logs

from billing.invoices.closing import JournalAge
from billing.invoices.verification import InvoiceVerification
from billing.months import begin, month_of
from db.session import EVERY_TENANT
from engine.protocol import JOURNAL_STREAM
from tests.billing.invoices.conftest import NOVEMBER, OCTOBER, Business, at
from worker.tasks.invoices import _close

ROOT = Path(__file__).resolve().parents[3]
TENANTS = 10


async def told(business: Business) -> list[Any]:
    async with business.database.read(EVERY_TENANT) as session:
        query = "SELECT tenant_id, data ->> 'month' FROM notifications WHERE type = 'invoice.finalized'"
        return [tuple(row) for row in await session.execute(text(query))]


async def test_the_worker_closes_due_months_and_notifies_once(business: Business) -> None:
    acme = await business.tenant()
    used = datetime.now(UTC).replace(day=1) - timedelta(days=40)
    await business.use(acme.id, used, 50_000)
    runtime: Any = SimpleNamespace(database=business.database, redis=business.redis)
    entry = await business.redis.xadd(JOURNAL_STREAM, {b"e": b"x"}, id=f"{int(used.timestamp() * 1000)}-0")
    with capture_logs() as lines:
        await _close(runtime)
    assert await business.invoices.list(acme.id) == []
    [line] = lines
    assert line["event"].startswith("month cannot be closed")
    assert line["entry_time"].startswith(f"{used:%Y-%m-%d}")
    await business.redis.xdel(JOURNAL_STREAM, entry)
    await business.redis.xadd(JOURNAL_STREAM, {b"e": b"x"})  # of now: no month that is over waits for it
    for _ in range(2):
        await _close(runtime)
    assert [one.month for one in await business.invoices.list(acme.id)] == [month_of(used)]
    assert await told(business) == [(acme.id, f"{used:%Y-%m}")]


async def test_the_journals_age_is_its_oldest_entrys(business: Business) -> None:
    age = JournalAge(business.redis)
    assert await age() is None
    for milliseconds in (1_790_000_000_500, 1_790_000_001_000):
        await business.redis.xadd(JOURNAL_STREAM, {b"e": b"x"}, id=f"{milliseconds}-3")
    assert await age() == datetime.fromtimestamp(1_790_000_000.5, UTC)


CLOSE = """
import asyncio, sys
from datetime import datetime
from redis.asyncio import Redis
from billing.invoices.closing import MonthClose
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from db.session import Database

async def main(database_url, redis_url, now):
    database = Database(database_url)
    async with Redis.from_url(redis_url) as client:
        async def nothing_waits(): return None
        close = MonthClose(database, InvoiceService(database, client, InvoiceSettings()), nothing_waits)
        await close.close_due(datetime.fromisoformat(now))
    await database.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_close_that_is_killed_is_gone_on_with(
    business: Business, database_url: str, redis_url: str
) -> None:
    now = at(NOVEMBER, 2, 0)
    for number in range(TENANTS):
        tenant = await business.tenant(f"tenant-{number}", since=begin(OCTOBER))
        await business.use(tenant.id, at(OCTOBER), 10_000 + number)
    arguments = (sys.executable, "-c", CLOSE, database_url, redis_url, now.isoformat())
    for enough in (1, TENANTS // 2):
        process = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT)
        while await _made(business) < enough:
            assert process.returncode is None or await _made(business) >= enough
            await asyncio.sleep(0.002)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
    await business.close(now)
    assert await _made(business) == TENANTS
    async with business.database.read(EVERY_TENANT) as session:
        numbers = list((await session.execute(text("SELECT number FROM invoices ORDER BY 1"))).scalars())
    assert numbers == list(range(1, TENANTS + 1))
    assert await InvoiceVerification(business.database).verify() == []


async def _made(business: Business) -> int:
    async with business.database.read(EVERY_TENANT) as session:
        return int((await session.execute(text("SELECT count(*) FROM invoices"))).scalar_one())
