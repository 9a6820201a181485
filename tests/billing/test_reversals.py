"""Reversals: all of a request or a charge, once, in the month that runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.charges import STORAGE, ChargeBook, DueCharge
from billing.errors import AlreadyReversed, NothingToReverse, StillRunning
from billing.folding import fold, measure
from billing.months import span
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter, UsageRepository
from billing.reversals import ReversalService
from billing.rollups import rederive
from billing.totals import CostLine, LedgerTotals
from db.session import EVERY_TENANT, Database
from engine.protocol import UsageEvent
from tenants.actors import OPERATOR
from tenants.models import Tenant
from tenants.service import AccountServices
from tests.support.journal import usage_event
from tests.support.ledger import assert_rollups_are_the_ledgers, query

THEN = datetime(2026, 10, 31, 23, 59, 30, tzinfo=UTC)
NOW = datetime(2026, 11, 2, 12, 0, 30, tzinfo=UTC)
MINUTE = NOW.replace(second=0)
RATE = Rate("prc_1", 1_000_000, 500_000, 3_000_000)
OCTOBER, NOVEMBER = span(THEN.date()), span(NOW.date())


@pytest.fixture
def service(database: Database) -> ReversalService:
    return ReversalService(database)


def event(name: str, tenant_id: str, **changes: object) -> UsageEvent:
    fields = {"submitted_at": THEN.timestamp(), "finish_reason": "stop", "prompt": 100, "cached": 40}
    made = usage_event(name, tenant=tenant_id, **(fields | changes))  # type: ignore[arg-type]
    made.labels.update({RATE_LABEL: RATE.label, "project_id": "proj_a"})
    return made


async def write(database: Database, *events: UsageEvent) -> None:
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(map(measure, events)))


async def cost(database: Database, tenant_id: str, month: tuple[datetime, datetime]) -> int:
    async with database.read(tenant_id) as session:
        return sum(line.cost for line in await LedgerTotals(session, tenant_id).costs(*month))


async def test_a_request_is_taken_back_whole_in_the_month_that_runs(
    database: Database, tenant: Tenant, service: ReversalService
) -> None:
    await write(database, event("a", tenant.id), event("b", tenant.id, completion=50))
    before = await cost(database, tenant.id, OCTOBER)
    made = await service.reverse_request(
        tenant.id, "a", THEN + timedelta(milliseconds=900), reason="garbled", by=OPERATOR, now=NOW
    )
    assert made.cost == 60 + 20 + 15
    assert (made.prompt_tokens, made.cached_tokens, made.completion_tokens) == (100, 40, 5)
    assert (made.actor, made.reason, made.at) == ("operator:operator", "garbled", NOW)
    assert await cost(database, tenant.id, OCTOBER) == before, "a month that is over stays as it was"
    assert await cost(database, tenant.id, NOVEMBER) == -made.cost
    async with database.read(tenant.id) as session:
        lines = await LedgerTotals(session, tenant.id).costs(*NOVEMBER, group_by=("model", "project_id"))
        usage = UsageRepository(session, tenant.id)
        [row] = await usage.sums(MINUTE, MINUTE + timedelta(hours=1), unit="minute", group_by=("key_id",))
    same = {"model": "sapling:pirate@1", "project_id": "proj_a"}
    assert lines == [
        CostLine(NOVEMBER[0], "input", -60, -60, **same),
        CostLine(NOVEMBER[0], "cached_input", -40, -20, **same),
        CostLine(NOVEMBER[0], "output", -5, -15, **same),
    ]
    assert (row.bucket, row.key_id, row.num_requests) == (MINUTE, "key_a", -1)
    await assert_rollups_are_the_ledgers(database)
    assert await rederive(database, NOW.date(), until=NOW) == []


async def test_nothing_is_taken_back_twice(
    database: Database, tenant: Tenant, service: ReversalService
) -> None:
    await write(database, event("a", tenant.id))

    async def reverse() -> bool:
        try:
            await service.reverse_request(tenant.id, "a", THEN, reason="r", by=OPERATOR, now=NOW)
        except AlreadyReversed:
            return False
        return True

    assert sorted(await asyncio.gather(*(reverse() for _ in range(5)))) == [False] * 4 + [True]
    assert not await reverse()
    assert await cost(database, tenant.id, NOVEMBER) == -95
    await assert_rollups_are_the_ledgers(database)


async def test_what_still_runs_is_not_there_or_is_anothers_stays(
    database: Database, tenant: Tenant, accounts: AccountServices, service: ReversalService
) -> None:
    other = await accounts.tenants.create_tenant("birch")
    await write(database, event("runs", tenant.id, finish_reason=None), event("theirs", other.id))
    with pytest.raises(StillRunning, match="runs"):
        await service.reverse_request(tenant.id, "runs", THEN, reason="r", by=OPERATOR, now=NOW)
    for name, at in (("theirs", THEN), ("nothing", THEN), ("runs", THEN + timedelta(seconds=2))):
        with pytest.raises(NothingToReverse, match=name):
            await service.reverse_request(tenant.id, name, at, reason="r", by=OPERATOR, now=NOW)
    with pytest.raises(NothingToReverse, match="storage:x"):
        await service.reverse_charge(tenant.id, "storage:x", reason="r", by=OPERATOR)
    assert await query(database, "SELECT * FROM reversals") == []


async def test_what_the_journal_says_later_of_a_reversed_request_counts_once(
    database: Database, tenant: Tenant, service: ReversalService
) -> None:
    """The same events again change nothing: the row is there still, and so is its reversal."""
    await write(database, event("a", tenant.id))
    await service.reverse_request(tenant.id, "a", THEN, reason="r", by=OPERATOR, now=NOW)
    await write(database, event("a", tenant.id))
    assert await cost(database, tenant.id, OCTOBER) == 95
    assert await cost(database, tenant.id, NOVEMBER) == -95
    await assert_rollups_are_the_ledgers(database)


async def test_a_charge_is_taken_back_whole(
    database: Database, tenant: Tenant, service: ReversalService
) -> None:
    due = DueCharge("storage:x", tenant.id, STORAGE, THEN, 2000, "prc_1", 5, 77, "adp_x@1")
    async with database.write(EVERY_TENANT) as session:
        assert await ChargeBook(session).add([due]) == [due]
        assert await ChargeBook(session).add([due]) == []
    made = await service.reverse_charge(tenant.id, due.id, reason="not stored", by=OPERATOR, now=NOW)
    with pytest.raises(AlreadyReversed, match=made.id):
        await service.reverse_charge(tenant.id, due.id, reason="again", by=OPERATOR, now=NOW)
    async with database.read(tenant.id) as session:
        totals = LedgerTotals(session, tenant.id)
        assert await totals.costs(*OCTOBER) == [CostLine(OCTOBER[0], "adapter_storage", 2000, 77)]
        assert await totals.costs(*NOVEMBER) == [CostLine(NOVEMBER[0], "adapter_storage", -2000, -77)]
        assert await totals.costs(OCTOBER[0], NOVEMBER[1]) == []
    await assert_rollups_are_the_ledgers(database)


async def test_who_took_back_what_is_in_the_audit_log(
    database: Database, tenant: Tenant, service: ReversalService
) -> None:
    await write(database, event("a", tenant.id))
    made = await service.reverse_request(tenant.id, "a", THEN, reason="garbled", by=OPERATOR, now=NOW)
    [entry] = await query(database, "SELECT * FROM audit_log WHERE type = 'usage.reversed'")
    assert entry["tenant_id"] == tenant.id
    assert made.id in str(entry)
    assert "garbled" in str(entry)


CHANGES = (
    "DELETE FROM usage_records",
    "TRUNCATE usage_records",
    "UPDATE usage_records SET completion_tokens = completion_tokens - 1",
    "UPDATE usage_records SET prompt_tokens = 50",
    "UPDATE usage_records SET tenant_id = 'tnt_x'",
    "UPDATE usage_records SET output_price = 0",
    "UPDATE usage_records SET project_id = NULL",
    "UPDATE usage_records SET submitted_at = submitted_at + interval '1 second'",
    "UPDATE usage_records SET finish_reason = NULL",
    "UPDATE usage_records SET cost = 0",
    "UPDATE usage_records SET reasoning_tokens = -1",
    "UPDATE reversals SET cost = 1",
    "DELETE FROM reversals",
    "TRUNCATE reversals",
)


async def test_not_even_the_owner_changes_what_is_written(
    database: Database, owner_database: Database, tenant: Tenant, service: ReversalService
) -> None:
    await write(database, event("a", tenant.id))
    await service.reverse_request(tenant.id, "a", THEN, reason="r", by=OPERATOR, now=NOW)
    before = {name: await query(database, f"SELECT * FROM {name}") for name in ("usage_records", "reversals")}
    for statement in CHANGES:
        with pytest.raises(DBAPIError, match=r"never changed|generated column"):
            async with owner_database.write(EVERY_TENANT) as session:
                await session.execute(text(statement))
    assert before == {name: await query(database, f"SELECT * FROM {name}") for name in before}
    async with owner_database.write(EVERY_TENANT) as session:  # growth is what a request does
        await session.execute(text("UPDATE usage_records SET completion_tokens = completion_tokens + 1"))
