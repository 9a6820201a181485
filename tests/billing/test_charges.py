"""Charges for what is stored and for calibrations: what they come to, and that each is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.charges import ChargeBook, ChargeRepository, ChargeService, DueCharge, byte_days, storage_cost
from billing.models import Price
from billing.totals import CostLine, LedgerTotals
from db.session import EVERY_TENANT, Database
from tenants.models import Tenant
from tests.support.ledger import query

DAY = datetime(2025, 10, 31, tzinfo=UTC)
ONE = timedelta(days=1)
GB = 10**9


async def price(database: Database, since: datetime, **amounts: int) -> str:
    """A version of the price list, in effect from a moment that may be past."""
    price_id = f"prc_{since:%m%d}"
    async with database.write(EVERY_TENANT) as session:
        tokens = {"input": 0, "cached_input": 0, "output": 0}
        session.add(Price(id=price_id, effective_from=since, **(tokens | amounts)))
    return price_id


async def store(database: Database, *spans: tuple[str, int, int, datetime, datetime | None]) -> None:
    """(tenant, version of adp_x, size, since, until) of what is stored, as the database notes it."""
    async with database.write(EVERY_TENANT) as session:
        for tenant_id, version, size, since, until in spans:
            await session.execute(
                text(
                    "INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since, until)"
                    " VALUES (:tenant, 'adp_x', :version, :size, :since, :until)"
                ),
                {"tenant": tenant_id, "version": version, "size": size, "since": since, "until": until},
            )


async def charges(database: Database) -> list[dict[str, Any]]:
    return await query(
        database, "SELECT id, tenant_id, quantity, unit_price, cost, at FROM charges ORDER BY id"
    )


instants = st.integers(-2 * 86_400 * 10**6, 3 * 86_400 * 10**6).map(
    lambda us: DAY + timedelta(microseconds=us)
)
spans = st.lists(st.tuples(st.integers(0, 2**45), instants, st.one_of(st.none(), instants)), max_size=5)


@given(spans)
def test_byte_days_are_exact_and_rounded_up_once(stored: list[tuple[int, datetime, datetime | None]]) -> None:
    stored = [(size, since, None if until is None else max(since, until)) for size, since, until in stored]
    exact = Fraction(0)
    for size, since, until in stored:
        overlap = min(until or DAY + ONE, DAY + ONE) - max(since, DAY)
        exact += size * Fraction(max(overlap // timedelta(microseconds=1), 0), 86_400 * 10**6)
    assert byte_days(stored, DAY) == ceil(exact)


@given(st.integers(0, 2**50), st.integers(0, 10**12))
def test_storage_costs_its_exact_price_rounded_up(quantity: int, gb_day: int) -> None:
    assert storage_cost(quantity, gb_day) == ceil(Fraction(quantity * gb_day, GB))


async def test_every_whole_day_and_version_is_charged_once(database: Database) -> None:
    """Also after days away, a version that was stored for part of a day, and one that is long gone."""
    await price(database, DAY - 30 * ONE, adapter_gb_day=1_000_000)
    noon = timedelta(hours=12)
    await store(
        database,
        ("tnt_a", 1, 2 * GB, DAY - ONE + noon, None),
        ("tnt_a", 2, GB, DAY - ONE, DAY + noon),
        ("tnt_b", 3, 1, DAY + ONE, DAY + 2 * ONE),
    )
    service = ChargeService(database)
    assert await service.charge_storage(DAY - ONE) == 0, "nothing has been stored for a whole day"
    assert await service.charge_storage(DAY + timedelta(minutes=9)) == 0, (
        "the day may not be written down yet"
    )
    assert await service.charge_storage(DAY + timedelta(minutes=10)) == 2
    assert await service.charge_storage(DAY + 2 * ONE + noon) == 4, "two days at once, after a day away"
    assert await service.charge_storage(DAY + 2 * ONE + noon) == 0
    made = {row["id"]: (row["tenant_id"], row["quantity"], row["cost"]) for row in await charges(database)}
    assert made == {
        "storage:2025-10-30:adp_x@1": ("tnt_a", GB, 1_000_000),
        "storage:2025-10-30:adp_x@2": ("tnt_a", GB, 1_000_000),
        "storage:2025-10-31:adp_x@1": ("tnt_a", 2 * GB, 2_000_000),
        "storage:2025-10-31:adp_x@2": ("tnt_a", GB // 2, 500_000),
        "storage:2025-11-01:adp_x@1": ("tnt_a", 2 * GB, 2_000_000),
        "storage:2025-11-01:adp_x@3": ("tnt_b", 1, 1),
    }
    assert all(row["id"].split(":")[1] == f"{row['at']:%Y-%m-%d}" for row in await charges(database))


async def test_a_day_pays_the_price_it_began_with(database: Database) -> None:
    await store(database, ("tnt_a", 1, GB, DAY - 3 * ONE, None))
    await price(database, DAY - 2 * ONE + timedelta(hours=1), adapter_gb_day=5)
    await price(database, DAY, adapter_gb_day=7)
    await price(database, DAY + ONE, adapter_gb_day=0)
    assert await ChargeService(database).charge_storage(DAY + 5 * ONE) == 2
    assert [(row["id"][8:18], row["unit_price"], row["cost"]) for row in await charges(database)] == [
        ("2025-10-30", 5, 5),
        ("2025-10-31", 7, 7),
    ]


async def test_workers_at_once_charge_a_day_once(database: Database) -> None:
    await price(database, DAY - 9 * ONE, adapter_gb_day=1)
    await store(database, ("tnt_a", 1, GB, DAY - 5 * ONE, None))
    services = [ChargeService(database) for _ in range(4)]
    made = await asyncio.gather(*(service.charge_storage(DAY + timedelta(hours=1)) for service in services))
    assert sum(made) == 5 == len(await charges(database))


async def test_a_charge_that_fails_leaves_its_day_to_be_charged(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await price(database, DAY - 9 * ONE, adapter_gb_day=1)
    await store(database, ("tnt_a", 1, GB, DAY - ONE, None))

    async def dies(self: ChargeBook, charges: Sequence[DueCharge]) -> list[DueCharge]:
        raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(ChargeBook, "add", dies)
        with pytest.raises(ConnectionError):
            await ChargeService(database).charge_storage(DAY + timedelta(hours=1))
    assert await charges(database) == []
    assert await ChargeService(database).charge_storage(DAY + timedelta(hours=1)) == 1


VERSION = (
    "INSERT INTO adapter_versions (adapter_id, version, tenant_id, base_digest, state, size, digest, rank)"
    " VALUES ('adp_x', 1, '{tenant}', 'b', 'calibrating', 1000, 'd', 8)"
)


async def stored_spans(database: Database) -> list[tuple[int, bool]]:
    rows = await query(database, "SELECT size, until IS NULL AS stays FROM adapter_storage ORDER BY number")
    return [(row["size"], row["stays"]) for row in rows]


async def run(database: Database, *statements: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        for statement in statements:
            await session.execute(text(statement))


async def test_the_database_notes_what_is_stored_as_versions_change(
    database: Database, tenant: Tenant
) -> None:
    adapter = f"INSERT INTO adapters (id, tenant_id, base, name) VALUES ('adp_x', '{tenant.id}', 'b', 'n')"
    await run(database, adapter, VERSION.format(tenant=tenant.id))
    assert await stored_spans(database) == [], "it is not the tenant's to use yet"
    await run(database, "UPDATE adapter_versions SET state = 'ready'")
    await run(database, "UPDATE adapter_versions SET state = 'disabled'")
    assert await stored_spans(database) == [(1000, True)]
    await run(database, "UPDATE adapter_versions SET state = 'ready', size = 700")
    assert await stored_spans(database) == [(1000, False), (700, True)]
    await run(database, "UPDATE adapter_versions SET state = 'deleting'")
    await run(database, "DELETE FROM adapter_versions")
    assert await stored_spans(database) == [(1000, False), (700, False)]
    [owner] = await query(database, "SELECT DISTINCT tenant_id, adapter_id, version FROM adapter_storage")
    assert owner == {"tenant_id": tenant.id, "adapter_id": "adp_x", "version": 1}
    await run(database, VERSION.format(tenant=tenant.id).replace("calibrating", "ready"))
    await run(database, "DELETE FROM adapter_versions")
    assert await stored_spans(database) == [(1000, False), (700, False), (1000, False)]


JOB = (
    "INSERT INTO jobs (id, tenant_id, adapter_id, version, status)"
    " VALUES ('{id}', '{tenant}', 'adp_x', 1, 'running')"
)


async def test_a_job_that_ends_well_is_charged_once(database: Database, tenant: Tenant) -> None:
    heard: list[str] = []

    async def on_charged(made: Sequence[DueCharge]) -> None:
        heard.extend(charge.id for charge in made)

    service = ChargeService(database, on_charged)
    since = datetime.now(UTC) - ONE
    price_id = await price(database, since, calibration_job=250_000)
    for name in ("well", "badly", "twice"):
        await run(database, JOB.format(id=name, tenant=tenant.id))
    ends = "UPDATE jobs SET status = '{}', finished_at = now() WHERE id = '{}'"
    await run(database, ends.format("failed", "badly"), ends.format("succeeded", "twice"))
    assert await service.charge_calibrations() == 1
    await run(database, ends.format("running", "twice"), ends.format("succeeded", "twice"))
    await run(database, ends.format("succeeded", "well"))
    assert await service.charge_calibrations() == 1
    assert await service.charge_calibrations() == 0
    rows = await query(database, "SELECT id, kind, cost, price_id, reference FROM charges ORDER BY id")
    same = {"kind": "calibration", "cost": 250_000, "price_id": price_id}
    assert rows == [{"id": f"calibration:{name}", **same, "reference": name} for name in ("twice", "well")]
    assert heard == ["calibration:twice", "calibration:well"]


async def test_a_job_costs_what_it_did_when_it_ended(database: Database, tenant: Tenant) -> None:
    await run(database, JOB.format(id="free", tenant=tenant.id), JOB.format(id="paid", tenant=tenant.id))
    now = datetime.now(UTC)
    await price(database, now - ONE, calibration_job=3)
    ends = "UPDATE jobs SET status = 'succeeded', finished_at = '{}' WHERE id = '{}'"
    await run(database, ends.format(now - 2 * ONE, "free"), ends.format(now, "paid"))
    assert await ChargeService(database).charge_calibrations() == 1
    assert [(row["id"], row["cost"]) for row in await charges(database)] == [("calibration:paid", 3)]
    assert await query(database, "SELECT * FROM calibrations_due") == []


@pytest.mark.parametrize(
    "change", ["UPDATE charges SET cost = 0", "DELETE FROM charges", "TRUNCATE charges CASCADE"]
)
async def test_a_charge_is_never_changed(database: Database, owner_database: Database, change: str) -> None:
    await price(database, DAY - ONE, adapter_gb_day=1)
    await store(database, ("tnt_a", 1, GB, DAY, None))
    await ChargeService(database).charge_storage(DAY + 2 * ONE)
    with pytest.raises(DBAPIError, match="never changed"):
        await run(owner_database, change)
    with pytest.raises(DBAPIError, match=r"permission denied|never changed"):
        await run(database, change)
    assert len(await charges(database)) == 1


async def test_charges_are_lines_of_what_a_tenant_costs(database: Database) -> None:
    await price(database, DAY - ONE, adapter_gb_day=1_000)
    await store(
        database, ("tnt_a", 1, GB, DAY, None), ("tnt_a", 2, 2 * GB, DAY, None), ("tnt_b", 3, GB, DAY, None)
    )
    await ChargeService(database).charge_storage(DAY + 2 * ONE + timedelta(hours=1))
    async with database.read("tnt_a") as session:
        totals = LedgerTotals(session, "tnt_a")
        whole = await totals.costs(DAY, DAY + 2 * ONE)
        by_day = await totals.costs(DAY, DAY + 2 * ONE, unit="day", group_by=("adapter_id",))
        of_key = await totals.costs(DAY, DAY + 2 * ONE, key_ids=["key_a"])
        assert await ChargeRepository(session, "tnt_a").total(DAY, DAY + ONE) == 3_000
        assert await ChargeRepository(session, "tnt_a").find("storage:2025-10-31:adp_x@3") is None
    assert whole == [CostLine(DAY, "adapter_storage", 6 * GB, 6_000)]
    assert by_day == [
        CostLine(day, "adapter_storage", 3 * GB, 3_000, adapter_id="adp_x") for day in (DAY, DAY + ONE)
    ]
    assert of_key == []


async def test_the_first_day_is_the_first_on_which_anything_was_stored(database: Database) -> None:
    async with database.read(EVERY_TENANT) as session:
        assert await ChargeBook(session).first_uncharged_day() is None
    await store(database, ("tnt_a", 1, GB, DAY + timedelta(hours=23), None))
    async with database.read(EVERY_TENANT) as session:
        assert await ChargeBook(session).first_uncharged_day() == date(2025, 10, 31)
