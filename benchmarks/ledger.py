"""Measures how fast the ledger takes usage in, and what queries on it cost.

"metering": one worker's meter drains a journal of requests, each with a checkpoint and an end, from Redis
into PostgreSQL, as durable as in service. "queries": the reports of large and small tenants over a ledger of
many requests, one at a time, through the services that answer them over HTTP. Both servers run on this
machine; its load average shows its other load. For metering, CPU time is the worker's and its PostgreSQL
backends', one after the other: what a busy machine changes least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import redis.asyncio
from sqlalchemy import text

from benchmarks.ledger_rows import Ledger, fill, vacuum, year_until
from billing.metering import JournalMeter
from billing.rates import RATE_LABEL, Rate
from billing.repository import UsageRepository
from billing.rollups import TABLES
from billing.service import UsageReports
from billing.totals import LedgerTotals
from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from cli.local.server import LocalServer
from db import schema
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM, PriorityClass, Usage, UsageEvent

STATEMENT_TIMEOUT = 3600.0
Question = Callable[[str], Awaitable[object]]


async def metering(url: str, redis_url: str, num_requests: int, batch: int) -> dict[str, Any]:
    """Returns the requests per second that one meter writes into the ledger, each with two events."""
    client = redis.asyncio.Redis.from_url(redis_url)
    database = Database(url, prepared_statements=True)
    try:
        await _write_journal(client, num_requests)
        meter = JournalMeter(database, client, "bench", batch_size=batch)
        began, cpu = time.perf_counter(), time.process_time()
        while await meter.backlog():
            await meter.drain()
        seconds = time.perf_counter() - began
        worker, backends = time.process_time() - cpu, await _backends_cpu(database)
        async with database.read(EVERY_TENANT) as session:
            found = await session.execute(text("SELECT count(*), sum(cost) > 0 FROM usage_records"))
            assert tuple(found.one()) == (num_requests, True)
    finally:
        await database.close()
        await client.aclose()
    return {
        "requests": num_requests,
        "events": 2 * num_requests,
        "batch": batch,
        "seconds": round(seconds, 3),
        "requests_per_second": round(num_requests / seconds),
        "worker_cpu_seconds": round(worker, 3),
        "postgres_cpu_seconds": round(backends, 3),
        "requests_per_cpu_second": round(num_requests / (worker + backends)),
        "load_average": os.getloadavg()[0],
    }


async def _backends_cpu(database: Database) -> float:
    """CPU seconds of this process's connections' backends so far, which are on this machine."""
    return sum(map(_process_cpu, await backends_of(database)))


async def backends_of(database: Database) -> Sequence[int]:
    """Returns the process ids of what serves connections to the database."""
    async with database.read(EVERY_TENANT) as session:
        query = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        return (await session.execute(query)).scalars().all()


def _process_ran(pid: int) -> float:
    """The same to the nanosecond; nothing of a parallel worker that is gone by now."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 10**9
    except OSError:
        return 0.0


def _process_cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _write_journal(client: redis.asyncio.Redis, num_requests: int) -> None:
    draw, now = random.Random(1), time.time()
    rate = Rate("prc_bench", 150_000, 75_000, 600_000)
    for first in range(0, num_requests, 1000):
        pipe = client.pipeline(transaction=False)
        for last in (False, True):
            for number in range(first, min(first + 1000, num_requests)):
                draw.seed(number)
                tenant = f"tnt_{draw.randrange(50)}"
                at = now - 60 + 60 * number / num_requests
                labels = {
                    "key_id": f"{tenant}-key-{draw.randrange(4)}",
                    "model": f"base:adapter-{draw.randrange(10)}@1",
                    "project_id": f"{tenant}-proj",
                    "service_tier": "default",
                    RATE_LABEL: rate.label,
                }
                event = UsageEvent(
                    engine_id="engine-0",
                    incarnation="one",
                    request_id=f"chatcmpl-{number:032x}",
                    tenant=tenant,
                    usage=Usage(200, 64, 300 if last else 256),
                    submitted_at=at,
                    recorded_at=at + 5,
                    priority=PriorityClass.DEFAULT,
                    labels=labels,
                    finished_at=at + 5 if last else None,
                    finish_reason="stop" if last else None,
                )
                pipe.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})
        await pipe.execute()


def questions(database: Database, ledger: Ledger) -> dict[str, Question]:
    """Returns the queries of tenants by name: reports that a console's pages and scripts fetch."""
    reports = UsageReports(database)
    end = ledger.end
    span = min(timedelta(days=30), timedelta(days=ledger.days - 1))

    def completions(width: str, back: timedelta, limit: int, *group_by: str) -> Question:
        async def ask(tenant: str) -> object:
            start = int((end - back).timestamp())
            return await reports.completions(
                tenant,
                start_time=start,
                end_time=int(end.timestamp()),
                bucket_width=width,
                limit=limit,
                group_by=group_by,
            )

        return ask

    async def costs_of_month(tenant: str) -> object:
        async with database.read(tenant) as session:
            return await LedgerTotals(session, tenant).costs(end - span, end)

    async def ragged(tenant: str) -> object:
        """From one odd minute to another: days in the middle, hours and minutes at the edges."""
        start = end - span + timedelta(hours=5, minutes=17)
        async with database.read(tenant) as session:
            usage = UsageRepository(session, tenant)
            return await usage.sums(start, end - timedelta(minutes=43), unit=None, group_by=("key_id",))

    return {
        "days_by_model": completions("1d", span, 31, "model"),
        "days_by_project_key_and_tier": completions(
            "1d", span, 31, "project_id", "api_key_id", "service_tier"
        ),
        "hours_of_a_week_by_model": completions("1h", min(span, timedelta(days=7)), 168, "model"),
        "minutes_of_a_day": completions("1m", timedelta(days=1), 1440),
        "minutes_of_a_day_by_key": completions("1m", timedelta(days=1), 1440, "api_key_id"),
        "costs_of_a_month": costs_of_month,
        "sum_between_odd_minutes": ragged,
    }


async def queries(database: Database, ledger: Ledger, rounds: int, pages: int = 40) -> dict[str, Any]:
    """Each question by tenants of every size, `rounds` times; the largest is among them each time."""
    asked = questions(database, ledger)
    draw = random.Random(ledger.seed)
    took: dict[str, list[float]] = {name: [] for name in asked}
    worked: list[float] = []
    for question in asked.values():  # as a process that has served for a while
        await question(ledger.tenant(0))
    for _ in range(rounds):
        tenants = [0, *draw.sample(range(1, ledger.tenants), min(pages, ledger.tenants) - 1)]
        for number in tenants:
            for name, question in asked.items():
                cpu, began = await _cpu(database), time.perf_counter()
                await question(ledger.tenant(number))
                took[name].append(time.perf_counter() - began)
                worked.append(await _cpu(database) - cpu)
    every = [seconds for times in took.values() for seconds in times]
    return {
        "all": quantiles(every),
        "cpu_of_all": quantiles(worked),
        **{name: quantiles(times) for name, times in took.items()},
    }


async def _cpu(database: Database) -> float:
    """Seconds that this process and its backends have worked, which no other on the machine changes much."""
    return time.process_time() + sum(map(_process_ran, await backends_of(database)))


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000, 2)

    return {"asked": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": at(1.0)}


async def sizes(database: Database) -> dict[str, Any]:
    """Rows and bytes of each table, indexes included."""
    found = {}
    async with database.read(EVERY_TENANT) as session:
        for table in ("usage_records", *TABLES.values()):
            rows = (await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
            size = text(
                "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(CAST(:table AS regclass))"
            )
            total = (await session.execute(size, {"table": table})).scalar_one()
            if total is None:
                total = (
                    await session.execute(
                        text("SELECT pg_total_relation_size(CAST(:table AS regclass))"), {"table": table}
                    )
                ).scalar_one()
            found[table] = {"rows": rows, "bytes": int(total)}
    return found


async def measure(
    arguments: argparse.Namespace, metered: LocalServer, asked: LocalServer, redis_url: str
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "metering": await metering(_serving(metered), redis_url, arguments.requests, arguments.batch)
    }
    print(figures["metering"], flush=True)
    ledger = year_until(datetime.now(UTC), arguments.rows, arguments.tenants, arguments.days)
    database = Database(_serving(asked), statement_timeout=STATEMENT_TIMEOUT, prepared_statements=True)
    try:
        began = time.perf_counter()
        await fill(database, ledger, progress=lambda done: print(done, flush=True))
        await asyncio.to_thread(vacuum, asked.url)
        seeded = round(time.perf_counter() - began, 1)
        stored = await sizes(database)
        load = os.getloadavg()[0]
        answered = await queries(database, ledger, arguments.rounds)
    finally:
        await database.close()
    return figures | {
        "ledger": {
            "requests": ledger.rows,
            "tenants": ledger.tenants,
            "days": ledger.days,
            "seconds_to_fill": seeded,
            "tables": stored,
        },
        "queries_ms": answered,
        "load_average": {"before_queries": load, "after_queries": os.getloadavg()[0]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000_000, help="requests in the ledger that is queried")
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=50_000, help="in the journal that is metered")
    parser.add_argument(
        "--batch", type=int, default=1000, help="of a worker, as ROOTSTOCK_WORKER_METER_BATCH"
    )
    parser.add_argument("--scratch", type=Path, default=None, help="where the databases lie meanwhile")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from benchmarks.report import write_report

    directory = Path(tempfile.mkdtemp(prefix="rs-ledger-", dir=arguments.scratch))
    try:
        with (
            start_redis(directory / "r") as redis_server,
            start_postgres(directory / "p") as metered,
            # Its content can be lost: written without waiting for the disk, queried like any other.
            start_postgres(directory / "q", ephemeral=True) as asked,
        ):
            figures = asyncio.run(measure(arguments, metered, asked, redis_server.url))
    finally:
        shutil.rmtree(directory)
    for name, times in figures["queries_ms"].items():
        print(name, times)
    write_report(arguments.out, figures)


def _serving(server: LocalServer) -> str:
    """Returns its database with all tables, with the serving role's permissions."""
    url = serving_url(server.url)
    schema.upgrade(server.url, url)
    return url


if __name__ == "__main__":
    main()
