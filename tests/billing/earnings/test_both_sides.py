"""What users of shared adapters pay and owners earn, from the events to both invoices."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.earnings import EarningsRepository
from billing.invoices.verification import InvoiceVerification
from billing.models import UsageRecord
from billing.rates import Rate
from billing.reconciliation.ledger import compare_reports, compare_rollups, compare_shares
from billing.reports.margin import MarginReports
from billing.reversals import ReversalService
from billing.service import UsageReports
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage, UsageEvent
from tenants.actors import OPERATOR
from tenants.share_terms import ShareTerms
from tests.billing.invoices.conftest import DECEMBER, NOVEMBER, OCTOBER, Business, at, forget_bills
from tests.support import booked
from tests.support.examples import examples
from tests.support.ledger import assert_rollups_are_the_ledgers, query

MODEL = "sapling:birch/pirate@1"
FIRST, LAST = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def shared(owner: str, share: str = "shr_1", *, input: int = 2_000_000, percent: int = 80) -> Rate:
    """A micro-USD a token, and the owner's surcharge."""
    terms = ShareTerms(share, owner, input, 3 * input, percent)
    return Rate("prc_test", 10**6, 10**6, 10**6, share=terms)


async def record(database: Database, tenant: str) -> UsageRecord:
    (row,) = await UsageReports(database).records(tenant, start=FIRST.timestamp(), end=LAST.timestamp())
    return row


async def test_the_row_the_sums_and_both_invoices_say_the_same(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.use(acme.id, at(OCTOBER), 30_001, completion=10_000, model=MODEL, rate=shared(birch.id))
    row = await record(business.database, acme.id)
    assert (row.owner_id, row.share_id, row.owner_percent) == (birch.id, "shr_1", 80)
    assert (row.cost, row.surcharge, row.owner_part) == (40_001, 120_002, 96_001)
    await business.use(birch.id, at(OCTOBER), 200_000)
    await business.close(at(NOVEMBER, 2))

    of_user = await business.invoice(acme.id, OCTOBER)
    lines = {line.details["item"]: line for line in of_user.lines if line.kind == "usage"}
    assert {item: line.amount for item, line in lines.items()} == {
        "input": 30_001,
        "output": 10_000,
        "surcharge": 120_002,
    }
    assert lines["surcharge"].details["quantity"] == 40_001
    assert lines["surcharge"].description == f"{MODEL}, default, surcharge of the adapter's owner"
    assert of_user.total == 160_003

    of_owner = await business.invoice(birch.id, OCTOBER)
    (earned,) = [line for line in of_owner.lines if line.kind == "earnings"]
    assert (earned.amount, earned.details["model"], earned.details["quantity"]) == (-96_001, MODEL, 40_001)
    assert of_owner.total == 200_000 - 96_001
    assert await InvoiceVerification(business.database).verify() == []
    assert await compare_shares(business.database, FIRST, LAST) == []
    assert await compare_reports(business.database, FIRST, LAST) == []

    costs = await UsageReports(business.database).costs.page(
        acme.id,
        start_time=int(FIRST.timestamp()),
        end_time=int(LAST.timestamp()),
        limit=31,
        group_by=["line_item"],
    )
    items = {one["line_item"]: one["amount_micro_usd"] for day in costs["data"] for one in day["results"]}
    assert items[f"{MODEL}, surcharge"] == 120_002
    margin = await MarginReports(business.database).report("2026-10", 0, now=at(NOVEMBER, 2))
    assert margin.revenue == 160_003 + 200_000 - 96_001, "the owner's part is not the operator's"


async def test_what_an_owner_earns_beyond_its_invoice_goes_into_its_balance(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.set_plan(birch.id, fee=0, included=10_000)
    await business.use(acme.id, at(OCTOBER), 1_000_000, rate=shared(birch.id))
    await business.use(birch.id, at(OCTOBER), 50_000)
    await business.close(at(NOVEMBER, 2))
    invoice = await business.invoice(birch.id, OCTOBER)
    amounts = {line.kind: line.amount for line in invoice.lines if line.amount}
    # What the plan includes covers usage, whatever was earned.
    assert amounts == {"usage": 50_000, "earnings": -1_600_000, "allowance": -10_000, "kept": 1_560_000}
    assert invoice.total == 0
    assert (await business.credits.balance(birch.id)).amount == 1_560_000


async def test_late_usage_is_earned_late(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.use(acme.id, at(OCTOBER), 100_000, rate=shared(birch.id))
    await business.close(at(NOVEMBER, 2))
    # The owner's own late usage of the same amount does not hide it.
    await business.use(acme.id, at(OCTOBER, 11), 100_000, rate=shared(birch.id))
    await business.use(birch.id, at(OCTOBER, 11), 160_000)
    await business.close(at(DECEMBER, 2))
    lines = [line for line in (await business.invoice(birch.id, NOVEMBER)).lines if line.month == OCTOBER]
    assert {line.kind: line.amount for line in lines if line.amount} == {
        "usage": 160_000,
        "earnings": -160_000,
    }
    assert await InvoiceVerification(business.database).verify() == []


async def test_prepaid_usage_pays_the_surcharge_from_the_balance(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(OCTOBER, 1))
    await business.credits.add(acme.id, "top_up", 10**6, "payment", OPERATOR, now=at(OCTOBER, 1))
    await business.use(acme.id, at(OCTOBER), 100_000, rate=shared(birch.id))
    assert (await business.credits.balance(acme.id)).amount == 10**6 - 300_000


async def test_a_reversal_takes_the_surcharge_back_from_both(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    request = await business.use(acme.id, at(OCTOBER), 100_000, model=MODEL, rate=shared(birch.id))
    reversals = ReversalService(business.database)
    reversed_ = await reversals.reverse_request(
        acme.id, request, at(OCTOBER), reason="billed in error", by=OPERATOR, now=at(NOVEMBER, 3)
    )
    assert (reversed_.cost, reversed_.surcharge, reversed_.owner_part) == (300_000, 200_000, 160_000)
    async with business.database.read(birch.id) as session:
        repository = EarningsRepository(session, birch.id)
        of_month = {
            month: sum(line.owner_part for line in await repository.of(month, month + timedelta(days=30)))
            for month in (FIRST, datetime(2026, 11, 1, tzinfo=UTC))
        }
    assert list(of_month.values()) == [160_000, -160_000]
    assert await compare_shares(business.database, FIRST, LAST) == []
    assert await compare_rollups(business.database, FIRST, LAST) == []
    await business.close(at(DECEMBER, 2))
    assert await InvoiceVerification(business.database).verify() == []


async def test_owners_see_their_earnings_alone(business: Business) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.use(acme.id, at(OCTOBER), 100_000, rate=shared(birch.id))
    for tenant, num_seen in ((acme.id, 0), (birch.id, 1)):
        async with business.database.read(tenant) as session:
            found = await session.execute(text("SELECT count(*) FROM share_earnings"))
            assert found.scalar_one() == num_seen


async def test_damage_on_either_side_is_found(business: Business, owner_database: Database) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.use(acme.id, at(OCTOBER), 100_000, rate=shared(birch.id))
    await business.close(at(NOVEMBER, 2))
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE share_earnings SET owner_part = owner_part - 1"))
    (found,) = await compare_shares(business.database, FIRST, LAST)
    assert (found.tenant_id, found.expected, found.found) == (birch.id, 160_000, 159_999)
    wrong = await InvoiceVerification(business.database).verify()
    assert [(one.tenant_id, one.expected, one.found) for one in wrong] == [(birch.id, -160_000, -159_999)]


async def test_the_terms_of_a_row_never_change(business: Business, owner_database: Database) -> None:
    acme, birch = [await business.tenant(name) for name in ("acme", "birch")]
    await business.use(acme.id, at(OCTOBER), 100, rate=shared(birch.id))
    for change in ("owner_id = 'tnt_thief'", "owner_percent = 100", "share_input_price = 0"):
        with pytest.raises(DBAPIError, match="never changed"):
            async with owner_database.write(EVERY_TENANT) as session:
                await session.execute(text(f"UPDATE usage_records SET {change}"))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[tuple[int, Usage]]], int]:
    """Requests of two users on two owners' adapters, each told by events that grow; and a seed."""
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        prompt, completions = (
            draw(st.integers(0, 5000)),
            sorted(draw(st.lists(st.integers(0, 9999), min_size=1))),
        )
        which = draw(st.integers(0, 7))
        requests.append([(which, Usage(prompt, prompt // 3, completion)) for completion in completions])
    return requests, draw(st.integers(0, 2**32))


@settings(
    max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories())
async def test_however_events_arrive_users_pay_what_owners_and_platform_get(
    database: Database, owner_database: Database, history: tuple[list[list[tuple[int, Usage]]], int]
) -> None:
    await forget_bills(owner_database)
    requests, seed = history
    events: list[UsageEvent] = []
    expected: dict[str, int] = {}
    paid = {"tnt_a": 0, "tnt_b": 0}
    for number, grown in enumerate(requests):
        which, last = grown[-1]
        user, owner = ("tnt_a", "tnt_b")[which & 1], ("tnt_c", "tnt_d")[which >> 1 & 1]
        rate = shared(
            owner, f"shr_{which}", input=(333_333, 7)[which >> 2], percent=(0, 33, 80, 100)[which % 4]
        )
        assert rate.share is not None
        events += [
            booked.request(
                user, booked.START + number, name=f"r{number}", usage=usage, rate=rate, model=MODEL
            )
            for _, usage in grown
        ]
        expected[owner] = expected.get(owner, 0) + rate.share.owner_part(
            last.prompt_tokens, last.completion_tokens
        )
        paid[user] += rate.cost(last)
    order = random.Random(seed)
    told = events + order.sample(events, len(events) // 2)
    order.shuffle(told)
    while told:
        size = order.randint(1, len(told))
        await booked.write(database, told[:size])
        told = told[size:]
    rows = await query(
        database, "SELECT tenant_id, sum(cost + surcharge) AS paid FROM usage_records GROUP BY 1"
    )
    assert {row["tenant_id"]: int(row["paid"]) for row in rows if row["paid"]} == {
        one: sum_ for one, sum_ in paid.items() if sum_
    }
    earned = await query(database, "SELECT tenant_id, sum(owner_part) AS part FROM share_earnings GROUP BY 1")
    assert {row["tenant_id"]: int(row["part"]) for row in earned} == expected
    (sums,) = await query(
        database,
        "SELECT (SELECT sum(surcharge) FROM usage_records) AS users,"
        " (SELECT sum(surcharge) FROM share_earnings) AS owners,"
        " (SELECT sum(surcharge) FROM usage_rollups) AS minutes",
    )
    assert sums["users"] == sums["owners"] == sums["minutes"]
    await assert_rollups_are_the_ledgers(database)
    assert await compare_shares(database, FIRST, LAST) == []
