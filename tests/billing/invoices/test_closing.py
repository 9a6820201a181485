"""Months that end, against a real ledger."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.errors import InvalidBillingMonth
from billing.invoices.errors import InvoiceNotFound
from billing.invoices.rendering import render
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.invoices.verification import InvoiceVerification
from billing.months import begin
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR as ACTOR
from tenants.audit.service import AuditLog
from tests.billing.invoices.conftest import (
    DECEMBER,
    NOVEMBER,
    OCTOBER,
    SEPTEMBER,
    TABLES,
    Business,
    at,
)
from tests.billing.invoices.test_rendering import text_of

CLOSE_OCTOBER, CLOSE_NOVEMBER = at(NOVEMBER, 2, 0), at(DECEMBER, 2, 0)


async def test_a_month_is_cut_at_midnight_utc(business: Business) -> None:
    acme = await business.tenant()
    microsecond = timedelta(microseconds=1)
    await business.use(acme.id, begin(OCTOBER) - microsecond, 1_000_000)
    await business.use(acme.id, begin(OCTOBER), 20_000)
    await business.use(acme.id, begin(NOVEMBER) - microsecond, 300_000)
    await business.use(acme.id, begin(NOVEMBER), 4_000_000)
    closed = await business.close(CLOSE_OCTOBER)
    assert closed.months == (SEPTEMBER, OCTOBER)
    october = await business.invoice(acme.id, OCTOBER)
    assert (october.total, october.total_cents, october.carried_out) == (320_000, 32, 0)
    assert (await business.invoice(acme.id, SEPTEMBER)).total_cents == 100


async def test_a_month_waits_for_its_day_and_for_the_journal(business: Business) -> None:
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), 50_000)
    await business.close(at(OCTOBER, 2))
    just_before = CLOSE_OCTOBER - timedelta(seconds=1)
    assert (await business.close(just_before)).months == ()
    business.oldest = begin(NOVEMBER) - timedelta(seconds=1)
    waiting = await business.close(CLOSE_OCTOBER)
    assert (waiting.months, waiting.waiting_for) == ((), business.oldest)
    assert await business.invoices.list(acme.id) == []
    business.oldest = begin(NOVEMBER)  # what was written since is of no month that is over
    assert (await business.close(CLOSE_OCTOBER)).months == (OCTOBER,)
    assert (await business.close(CLOSE_OCTOBER)).months == ()


async def test_invoices_of_less_than_can_be_charged_are_made_and_carried_to_one_that_can(
    business: Business, owner_database: Database
) -> None:
    acme, other = await business.tenant(), await business.tenant("other")
    charging = InvoiceService(business.database, business.redis, InvoiceSettings(), minimum_cents=50)
    for month, amount in ((SEPTEMBER, 494_999), (OCTOBER, 100_000), (NOVEMBER, 4_999)):
        await business.use(acme.id, at(month), amount)
    await business.use(other.id, at(SEPTEMBER), 495_000)
    preview = await charging.preview(acme.id, OCTOBER, now=CLOSE_OCTOBER)
    for month, now in ((SEPTEMBER, CLOSE_OCTOBER), (OCTOBER, CLOSE_OCTOBER), (NOVEMBER, CLOSE_NOVEMBER)):
        for tenant in (acme, other):
            await charging.finalize(tenant.id, month, now=now)
    made = list(reversed(await charging.list(acme.id)))
    assert [(one.number, one.total_cents, one.carried_out) for one in made] == [
        (1, 0, 494_999),
        (3, 59, 4_999),
        (4, 0, 9_998),
    ]
    assert preview.lines == made[1].lines, "the preview of a month that is over is its invoice"
    assert [line.description for line in made[1].lines if line.kind == "carried"] == [
        "Balance below the minimum charge, from the previous invoice"
    ]
    assert any("Less than can be charged" in line for line in text_of(render(made[0])))
    assert made[0].status == "paid", "nobody is asked for it"
    assert (await business.invoice(other.id, SEPTEMBER)).total_cents == 50
    # Whoever collects without a minimum later asks for all that was carried; what was made before stays.
    await business.use(acme.id, at(DECEMBER), 2)
    await business.invoices.finalize(acme.id, DECEMBER, now=at(date(2027, 1, 1), 2))
    last = await business.invoice(acme.id, DECEMBER)
    assert (last.total_cents, last.carried_out) == (1, 0)
    verification = InvoiceVerification(business.database)
    assert await verification.verify() == []
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        with pytest.raises(DBAPIError, match="rounded_half_up"):  # carried without having been too little
            await session.execute(text("UPDATE invoices SET minimum_cents = 0 WHERE number = 1"))


async def test_lines_tell_models_classes_and_kinds_of_token_apart(business: Business) -> None:
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), 100, cached=40, completion=7)
    await business.use(acme.id, at(OCTOBER, 11), 10, model="sapling:pirate@1", tier="flex")
    await business.close(CLOSE_OCTOBER)
    view = await business.invoice(acme.id, OCTOBER)
    assert [(line.description, line.details["quantity"], line.amount) for line in view.lines] == [
        ("sapling, default, input tokens", 60, 60),
        ("sapling, default, cached input tokens", 40, 40),
        ("sapling, default, output tokens", 7, 7),
        ("sapling:pirate@1, flex, input tokens", 10, 10),
    ]


async def test_what_rounding_left_is_on_the_next_invoice(business: Business) -> None:
    acme = await business.tenant(since=begin(OCTOBER))
    await business.use(acme.id, at(OCTOBER), 15_000)
    await business.use(acme.id, at(NOVEMBER), 15_000)
    await business.use(acme.id, at(DECEMBER), 1)
    await business.close(at(DECEMBER.replace(year=2027), 2))
    months = [await business.invoice(acme.id, month) for month in (OCTOBER, NOVEMBER, DECEMBER)]
    assert [(one.total_cents, one.carried_out) for one in months] == [(2, -5_000), (1, 0), (0, 1)]
    assert [(line.kind, line.amount) for line in months[1].lines] == [("carried", -5_000), ("usage", 15_000)]
    assert months[1].lines[0].description == "Rounding carried from the previous invoice"
    assert await business.spent(acme.id) == 10_000 * sum(one.total_cents for one in months) + 1


async def test_late_usage_comes_on_the_next_invoice_as_its_own_line(business: Business) -> None:
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), 50_000)
    await business.close(CLOSE_OCTOBER)
    before = await business.invoice(acme.id, OCTOBER)
    await business.use(acme.id, at(OCTOBER, 20), 8_000)
    await business.use(acme.id, at(SEPTEMBER, 30, 23, 59), 400)
    await business.use(acme.id, at(NOVEMBER), 10_000)
    await business.close(CLOSE_NOVEMBER)
    assert await business.invoice(acme.id, OCTOBER) == before, "a closed month stays as it was"
    november = await business.invoice(acme.id, NOVEMBER)
    assert [(line.month, line.description, line.amount) for line in november.lines] == [
        (NOVEMBER, "sapling, default, input tokens", 10_000),
        (SEPTEMBER, "Usage of September 2026, recorded late: sapling, default, input tokens", 400),
        (OCTOBER, "Usage of October 2026, recorded late: sapling, default, input tokens", 8_000),
    ]


async def test_a_month_is_billed_by_the_plan_and_fee_that_it_ended_with(
    business: Business, owner_database: Database
) -> None:
    moved, stayed = await business.tenant("moved"), await business.tenant("stayed")
    for tenant in (moved, stayed):
        await business.set_plan(tenant.id, fee=20_000_000, included=5_000_000)
        await business.use(tenant.id, at(OCTOBER), 50_000)
        await business.use(tenant.id, at(NOVEMBER), 50_000)
    # As November began, one was put on another plan, and the fee of theirs became another one.
    turn = at(NOVEMBER, 1, 0)
    async with owner_database.write(EVERY_TENANT) as session:
        for statement in (
            "INSERT INTO plans (id, name) VALUES ('free', 'free')",
            "UPDATE plans SET monthly_fee = 90000000, name = 'crew' WHERE id = 'p'",
            f"UPDATE tenants SET plan_id = 'free' WHERE id = '{moved.id}'",
            "DELETE FROM tenant_plans",
            "DELETE FROM plan_fees",
            f"INSERT INTO tenant_plans SELECT id, created_at, 'p' FROM tenants WHERE id = '{stayed.id}'",
            f"INSERT INTO tenant_plans VALUES ('{moved.id}', '2026-01-05', 'p'),"
            f" ('{moved.id}', '{turn}', 'free')",
            "INSERT INTO plan_fees VALUES ('p', '2026-01-01', 'team', 20000000, 5000000),"
            f" ('p', '{turn}', 'crew', 90000000, 5000000)",
        ):
            await session.execute(text(statement))
    await business.close(CLOSE_OCTOBER)
    for tenant in (moved, stayed):
        (fee,) = [line for line in (await business.invoice(tenant.id, OCTOBER)).lines if line.kind == "fee"]
        assert (fee.description, fee.amount) == ("Plan team, monthly fee", 20_000_000)
    await business.close(CLOSE_NOVEMBER)
    november = await business.invoice(moved.id, NOVEMBER)
    assert [line.kind for line in november.lines if line.kind == "fee"] == []
    (fee,) = [line for line in (await business.invoice(stayed.id, NOVEMBER)).lines if line.kind == "fee"]
    assert fee.amount == 90_000_000


async def test_a_trigger_writes_down_what_plans_cost(business: Business) -> None:
    acme = await business.tenant()
    await business.set_plan(acme.id, fee=20_000_000, included=5_000_000)
    for fee in (1, 2):
        async with business.database.write(EVERY_TENANT) as session:
            await session.execute(text("UPDATE plans SET monthly_fee = :fee WHERE id = 'p'"), {"fee": fee})
            await session.execute(text("UPDATE plans SET max_adapters = :fee WHERE id = 'p'"), {"fee": fee})
    async with business.database.read(EVERY_TENANT) as session:
        query = "SELECT name, monthly_fee, included_usage FROM plan_fees WHERE plan_id = 'p' ORDER BY since"
        noted = [tuple(row) for row in await session.execute(text(query))]
    assert noted == [("team", 20_000_000, 5_000_000), ("team", 1, 5_000_000), ("team", 2, 5_000_000)]


async def test_closing_again_or_by_two_at_once_makes_one_invoice_each(business: Business) -> None:
    tenants = [await business.tenant(f"tenant-{number}") for number in range(5)]
    for tenant in tenants:
        await business.use(tenant.id, at(OCTOBER), 10_000)
    await asyncio.gather(*(business.close(CLOSE_OCTOBER) for _ in range(3)))
    made = [invoice for tenant in tenants for invoice in await business.invoices.list(tenant.id)]
    assert sorted(invoice.number or 0 for invoice in made) == [1, 2, 3, 4, 5]


async def test_an_invoice_that_fails_leaves_no_gap_and_no_half(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await business.tenant("first"), await business.tenant("second")
    for tenant in (first, second):
        await business.use(tenant.id, at(OCTOBER), 10_000)
        await business.credits.add(tenant.id, "grant", 4_000, "welcome", ACTOR, now=at(OCTOBER))
    record = AuditLog.record

    async def failing(session: object, tenant_id: str, *rest: object, **named: object) -> object:
        if tenant_id == first.id and "invoice.finalized" in rest:
            raise RuntimeError("killed just before the commit")
        return await record(session, tenant_id, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(AuditLog, "record", staticmethod(failing))
    with pytest.raises(RuntimeError):
        await business.close(CLOSE_OCTOBER)
    assert await business.invoices.list(first.id) == []
    assert (await business.credits.balance(first.id)).amount == 4_000
    monkeypatch.undo()
    await business.close(CLOSE_OCTOBER)
    numbers = [(await business.invoice(tenant.id, OCTOBER)).number for tenant in (first, second)]
    assert numbers == [1, 2]
    assert (await business.credits.balance(first.id)).amount == 0


async def test_a_fee_is_asked_for_where_the_plan_has_one(business: Business) -> None:
    acme, idle = await business.tenant(since=begin(OCTOBER)), await business.tenant("idle")
    await business.set_plan(acme.id, fee=20_000_000, included=5_000_000)
    await business.use(acme.id, at(OCTOBER), 6_000_000)
    await business.close(CLOSE_NOVEMBER)
    october = await business.invoice(acme.id, OCTOBER)
    assert [(line.kind, line.amount) for line in october.lines] == [
        ("fee", 20_000_000),
        ("usage", 6_000_000),
        ("allowance", -5_000_000),
    ]
    assert (await business.invoice(acme.id, NOVEMBER)).total_cents == 2_000, "also where nothing was used"
    assert await business.invoices.list(idle.id) == [], "no plan with a fee, no usage: no invoice"


async def test_a_suspended_tenant_pays_no_fee_for_the_months_after(
    business: Business, owner_database: Database
) -> None:
    served, suspended = [await business.tenant(name, since=begin(OCTOBER)) for name in ("on", "off")]
    for tenant in (served, suspended):
        await business.set_plan(tenant.id, fee=20_000_000, included=0)
        await business.use(tenant.id, at(OCTOBER), 50_000)
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE tenants SET disabled_at = :at WHERE id = :id"),
            {"at": at(OCTOBER, 20), "id": suspended.id},
        )
    await business.close(CLOSE_OCTOBER)
    # Recorded late: an invoice of November all the same, for this alone.
    await business.use(suspended.id, at(OCTOBER, 19), 30_000)
    await business.close(CLOSE_NOVEMBER)
    for tenant, months in ((served, [NOVEMBER, OCTOBER]), (suspended, [OCTOBER])):
        made = await business.invoices.list(tenant.id)
        assert [line.month for one in made for line in one.lines if line.kind == "fee"] == months
    assert (await business.invoice(suspended.id, NOVEMBER)).total == 30_000


async def test_the_preview_is_the_invoice_to_come(business: Business) -> None:
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), 15_000)
    await business.use(acme.id, at(NOVEMBER), 12_345)
    await business.credits.add(acme.id, "grant", 17_000, "g", ACTOR, now=at(OCTOBER))
    # October waits for its invoice, which will take of the balance and carry half a cent.
    preview = await business.invoices.preview(acme.id, NOVEMBER, now=at(NOVEMBER, 1, 3))
    assert preview.id is None
    await business.close(CLOSE_NOVEMBER)
    final = await business.invoice(acme.id, NOVEMBER)
    assert (preview.lines, preview.total, preview.total_cents, preview.carried_out, preview.customer) == (
        final.lines,
        final.total,
        final.total_cents,
        final.carried_out,
        final.customer,
    )
    assert final.total > 0
    assert await business.invoices.preview(acme.id, NOVEMBER, now=CLOSE_NOVEMBER) == final
    with pytest.raises(InvalidBillingMonth, match="begun"):
        await business.invoices.preview(acme.id, DECEMBER, now=at(NOVEMBER))
    with pytest.raises(InvalidBillingMonth, match="later invoices"):
        await business.invoices.preview(acme.id, SEPTEMBER, now=at(DECEMBER))


async def test_months_are_invoiced_in_order(business: Business) -> None:
    acme = await business.tenant()
    for month in (OCTOBER, NOVEMBER):
        await business.use(acme.id, at(month), 10_000)
    with pytest.raises(InvalidBillingMonth, match="2026-10 is to be invoiced before 2026-11"):
        await business.invoices.finalize(acme.id, NOVEMBER, now=CLOSE_NOVEMBER)
    with pytest.raises(InvalidBillingMonth, match="over"):
        await business.invoices.finalize(acme.id, NOVEMBER, now=at(NOVEMBER, 30))


async def test_what_is_final_cannot_be_changed(business: Business) -> None:
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), 10_000)
    await business.credits.add(acme.id, "grant", 4_000, "g", ACTOR, now=at(OCTOBER))
    await business.close(CLOSE_OCTOBER)
    for table in TABLES:
        column = "closed_at = now()" if table == "closed_months" else "tenant_id = 'x'"
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column}"):
            with pytest.raises(DBAPIError, match=r"only ever added to|permission denied"):
                async with business.database.write(EVERY_TENANT) as session:
                    await session.execute(text(statement))


async def test_an_invoice_is_its_tenants_alone(business: Business) -> None:
    acme, birch = await business.tenant(), await business.tenant("birch")
    await business.use(acme.id, at(OCTOBER), 10_000)
    await business.close(CLOSE_OCTOBER)
    invoice = await business.invoice(acme.id, OCTOBER)
    assert invoice.id is not None
    with pytest.raises(InvoiceNotFound):
        await business.invoices.find(birch.id, invoice.id)
    assert await business.invoices.list(birch.id) == []
    assert await business.invoices.owner(invoice.id) == acme.id


async def test_an_invoice_names_who_it_went_to_then(business: Business) -> None:
    acme = await business.tenant()
    await business.accounts.set_details(acme.id, ACTOR, {"name": "Acme Société", "country": "FR"})
    await business.use(acme.id, at(OCTOBER), 10_000)
    await business.close(CLOSE_OCTOBER)
    await business.accounts.set_details(acme.id, ACTOR, {"name": "Somebody else"})
    invoice = await business.invoice(acme.id, OCTOBER)
    assert invoice.customer == {"tenant_id": acme.id, "name": "Acme Société", "country": "FR"}
    assert invoice.seller["name"] == "Acorn Serving Ltd"
