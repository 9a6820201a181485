"""kill -9 of a meter between any two of its steps: the next one completes the work, exactly."""

from __future__ import annotations

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.charges import ChargeService
from billing.metering import JournalMeter
from billing.rates import RATE_LABEL, Rate
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM
from tests.support.journal import usage_event, write_events
from tests.support.killed_charges import UNTIL
from tests.support.killed_meter import BATCH_SIZE, INSTANTS
from tests.support.ledger import SUMMED, query
from tests.support.programs import end_killed

LEFT = {"taken": 20, "written": 20, "committed": 20, "acknowledged": 10}
"""Entries still in the journal after the death, of three batches."""
WRITTEN = {"taken": 10, "written": 10, "committed": 20, "acknowledged": 20}
"""Rows in the ledger by then."""


async def totals(database: Database) -> tuple[int, int, int]:
    """Requests, their tokens and what they cost, by the records; the rollups have the same at any instant."""
    sums = "coalesce(sum(completion_tokens), 0) AS tokens, coalesce(sum(cost), 0) AS cost"
    tables = {"usage_records": "count(*)"} | dict.fromkeys(SUMMED, "coalesce(sum(num_requests), 0)")
    found = [
        await query(database, f"SELECT {count} AS n, {sums} FROM {name}") for name, count in tables.items()
    ]
    assert all(one == found[0] for one in found), found
    [row] = found[0]
    return int(row["n"]), int(row["tokens"]), int(row["cost"])


@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_meter_killed_at_any_instant_loses_and_doubles_nothing(
    instant: str, database: Database, database_url: str, redis_url: str, redis_client: redis.asyncio.Redis
) -> None:
    events = [usage_event(f"req-{i:02}", completion=i) for i in range(3 * BATCH_SIZE)]
    for event in events:
        event.labels[RATE_LABEL] = Rate("prc_1", 0, 0, 2_000_000).label
    write_events(redis_url, events)
    await end_killed("tests.support.killed_meter", database_url, redis_url, instant)
    assert await redis_client.xlen(JOURNAL_STREAM) == LEFT[instant]
    rows = WRITTEN[instant]
    assert await totals(database) == (rows, sum(range(rows)), 2 * sum(range(rows)))

    survivor = JournalMeter(database, redis_client, "survivor", batch_size=BATCH_SIZE, stale_after=0)
    await survivor.drain()
    assert await totals(database) == (30, sum(range(30)), 2 * sum(range(30)))
    assert await redis_client.xlen(JOURNAL_STREAM) == 0
    assert (await survivor.drain()).num_entries == 0


SEED = (
    "INSERT INTO prices (id, effective_from, input, cached_input, output, adapter_gb_day, calibration_job)"
    " VALUES ('prc_1', '2025-01-01Z', 0, 0, 0, 1000, 5)",
    "INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since)"
    " VALUES ('tnt_a', 'adp_x', 1, 1000000000, '2025-10-30Z')",
    "INSERT INTO calibrations_due (job_id, tenant_id, finished_at) VALUES ('job_1', 'tnt_a', '2025-10-30Z')",
)


async def test_a_worker_killed_while_it_charges_loses_and_doubles_nothing(
    database: Database, database_url: str
) -> None:
    """With the charges written and the transaction open, first of the calibrations, then of a day."""
    async with database.write(EVERY_TENANT) as session:
        for statement in SEED:
            await session.execute(text(statement))
    for transactions, charged in ((1, 0), (2, 1)):
        await end_killed("tests.support.killed_charges", database_url, str(transactions))
        assert len(await query(database, "SELECT id FROM charges")) == charged
    service = ChargeService(database)
    assert await service.charge_calibrations() + await service.charge_storage(UNTIL) == 2
    assert {row["id"]: row["cost"] for row in await query(database, "SELECT id, cost FROM charges")} == {
        "calibration:job_1": 5,
        "storage:2025-10-30:adp_x@1": 1000,
        "storage:2025-10-31:adp_x@1": 1000,
    }
