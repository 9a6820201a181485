"""Fills a ledger as years of a business would: any number of records, drawn by a seed inside PostgreSQL.

Requests come in bursts, as agents and batch runs send them: BURST consecutive ones are of one tenant, key,
adapter and class. Tenants differ in size: the largest of 100 has a sixth of everything. Sums are filled too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine, pool, text

from billing.repository import LedgerWriter
from billing.rollups import KEYS, SUMS, TABLES, add_sql
from db.rollup_intervals import Unit
from db.session import EVERY_TENANT, Database

BURST = 16
_COLUMNS = """
    submitted_at, request_id, tenant_id, key_id, model, adapter_id, adapter_version, endpoint, service_tier,
    prompt_tokens, cached_tokens, completion_tokens, num_choices, finish_reason, queue_seconds,
    first_token_seconds, total_seconds, preemptions, engine_id, recorded_at, project_id, user_id,
    price_id, input_price, cached_input_price, output_price, price_percent
"""

# `b`: the burst's draw, `r`: the request's own, both from hashes, so that a seed says all.
_ROWS = f"""
INSERT INTO usage_records ({_COLUMNS})
SELECT at, 'chatcmpl-' || lpad(to_hex(CAST(extract(epoch FROM at) * 1000000 AS bigint)), 14, '0')
               || lpad(to_hex(n), 18, '0'),
       tenant, tenant || '-key-' || b % 4, 'base:adapter-' || b % 10 || '@1', tenant || '-adp-' || b % 10, 1,
       'chat.completions',
       CASE WHEN b % 7 = 0 THEN 'priority' WHEN b % 7 < 3 THEN 'flex' ELSE 'default' END,
       50 + r % 2000, (50 + r % 2000) / 3, 1 + r % 700, 1, 'stop', 0.01, 0.2, 0.2 + (r % 700) * 0.02, 0,
       'engine-' || n % 4, at + interval '20 seconds', tenant || '-proj-' || b % 2,
       tenant || '-usr-' || b % 4, 'prc_bench', 150000, 75000, 600000, 100
FROM (
    SELECT n, b, r,
           'tnt_' || lpad(CAST(CAST(floor(
               :tenants * power(CAST(b % 1000003 AS double precision) / 1000003, 2.5)
           ) AS integer) AS text), 4, '0') AS tenant,
           CAST(:start AS timestamptz)
               + CAST(:span AS interval) * (n / CAST(:total AS double precision)) AS at
    FROM (
        SELECT n, abs(hashint8extended(n / {BURST}, :seed) % 1000000007) AS b,
               abs(hashint8extended(n, :seed) % 1000003) AS r
        FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
    ) AS draws
) AS requests
"""
_OF_RECORDS = """(
    SELECT tenant_id, submitted_at AS at, key_id, model, service_tier, project_id, user_id, adapter_id,
           1 AS num_requests, prompt_tokens, cached_tokens, completion_tokens, cost, cached_cost, output_cost,
           surcharge
    FROM usage_records WHERE submitted_at >= :begins AND submitted_at < :ends
) AS records"""


def _of_sums(unit: Unit) -> str:
    return f"""(
        SELECT tenant_id, {unit} AS at, {", ".join((*KEYS, *SUMS))}
        FROM {TABLES[unit]} WHERE {unit} >= :begins AND {unit} < :ends
    ) AS finer"""


_SUMS = {
    "minute": add_sql("minute", _OF_RECORDS),
    "hour": add_sql("hour", _of_sums("minute")),
    "day": add_sql("day", _of_sums("hour")),
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is to be there: `rows` requests evenly over `days` from `start` on."""

    rows: int
    tenants: int
    start: datetime
    days: int
    seed: int = 1

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=self.days)

    def tenant(self, number: int) -> str:
        """The largest is 0."""
        return f"tnt_{number:04}"


async def fill(
    database: Database,
    ledger: Ledger,
    *,
    chunk: int = 1_000_000,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write the ledger's rows, a transaction for each chunk, then their sums, one for each day."""
    months = (ledger.end.year - ledger.start.year) * 12 + ledger.end.month - ledger.start.month + 1
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).ensure_partitions(ledger.start.date(), months)
    drawn = {
        "tenants": ledger.tenants,
        "start": ledger.start,
        "span": timedelta(days=ledger.days),
        "total": ledger.rows,
        "seed": ledger.seed,
    }

    async def add_rows(first: int) -> str:
        last = min(first + chunk, ledger.rows) - 1
        async with database.write(EVERY_TENANT) as session:
            await session.execute(text(_ROWS), {**drawn, "first": first, "last": last})
        return f"rows from {first} to {last}"

    async def add_sums(day: int) -> str:
        begins = ledger.start + timedelta(days=day)
        bounds = {"begins": begins, "ends": begins + timedelta(days=1)}
        async with database.write(EVERY_TENANT) as session:
            for statement in _SUMS.values():
                await session.execute(text(statement), bounds)
        return f"sums of {begins:%Y-%m-%d}"

    await _two_at_once(add_rows, range(0, ledger.rows, chunk), progress)
    await _two_at_once(add_sums, range(ledger.days), progress)


def vacuum(owner_url: str) -> None:
    """Leave the tables as a ledger's are that grew over a year. Only their owner may."""
    engine = create_engine(owner_url, poolclass=pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for table in ("usage_records", *TABLES.values()):
            connection.execute(text(f"VACUUM (ANALYZE) {table}"))


async def _two_at_once(
    work: Callable[[int], Awaitable[str]], pieces: Iterable[int], progress: Callable[[str], None] | None
) -> None:
    """Both of this machine's cores, where it has two: a chunk at a time is one backend's."""
    waiting = iter(pieces)

    async def worker() -> None:
        for piece in waiting:
            done = await work(piece)
            if progress is not None:
                progress(done)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(worker())


def year_until(now: datetime, rows: int, tenants: int, days: int) -> Ledger:
    """One that ends with the day of `now`."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Ledger(rows, tenants, midnight - timedelta(days=days - 1), days)
