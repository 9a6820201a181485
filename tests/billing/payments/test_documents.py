"""What the provider asks customers to pay is what our invoices say: fees, allowances, balances, late usage,
roundings, notes; through faults, once; and it names customers as they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from billing.invoices.accounts import BillingAccounts
from billing.invoices.corrections import CreditNotes
from billing.invoices.credits import CreditService
from billing.invoices.lines import Line, in_cents
from billing.invoices.models import Invoice
from billing.invoices.service import InvoiceService, record_payment
from billing.invoices.settings import InvoiceSettings
from billing.invoices.views import InvoiceView
from billing.payments.documents import provider_lines, queue_invoice
from billing.payments.errors import ProviderUnavailable
from billing.payments.manual import ManualQueue
from billing.payments.matching import match_payments
from billing.reconciliation.provider import compare_documents
from db.session import EVERY_TENANT
from examples.stripe_double import API_KEY, Fault
from tenants.actors import OPERATOR
from tests.billing.payments.conftest import Site
from tests.billing.payments.usage import TENANT, prepaid, use
from tests.support.killed_sender import STEPS
from tests.support.programs import end_killed

JANUARY = date(2027, 1, 1)
CLOSING = datetime(2027, 2, 2, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def invoiced(
    site: Site, month: date = JANUARY, now: datetime = CLOSING, minimum_cents: int = 50
) -> Invoice:
    """The month's invoice, made as the worker does; the double is there by then."""
    site.travel(now)
    service = InvoiceService(
        site.database,
        _redis(site),
        InvoiceSettings(),
        on_final=[queue_invoice],
        minimum_cents=minimum_cents,
    )
    made = await service.finalize(TENANT, month, now=now)
    assert made is not None
    return made


def _redis(site: Site) -> redis.asyncio.Redis:
    return site.dunning._redis


def asked(site: Site) -> list[tuple[int, int, str]]:
    """(total, paid, status) of what the customer was asked to pay, the first month first."""
    found = site.double.books.all("invoice", customer=site.customer)[::-1]
    return [(one["total"], one["amount_paid"], one["status"]) for one in found if one["metadata"]]


async def documents(site: Site) -> list[tuple[str, int, str]]:
    query = "SELECT kind, cents, state FROM stripe_documents ORDER BY kind DESC, created_at, id"
    async with site.database.read(EVERY_TENANT) as session:
        return [tuple(row) for row in await session.execute(text(query))]


async def differences(site: Site) -> Sequence[object]:
    year = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    await match_payments(site.database, site.now)
    return await compare_documents(site.database, site.gateway, *year, site.now)


async def test_fee_allowance_and_balance_are_asked_for_as_the_invoice_has_them(site: Site) -> None:
    async with site.database.write(EVERY_TENANT) as session:
        await session.execute(
            text(
                "INSERT INTO plans (id, name, monthly_fee, included_usage) "
                "VALUES ('p', 'team', 20000000, 3000000)"
            )
        )
        await session.execute(text("UPDATE tenants SET plan_id = 'p', created_at = '2027-01-01Z'"))
    credits = CreditService(site.database, _redis(site))
    await credits.add(TENANT, "grant", 1_500_001, "welcome", OPERATOR, now=site.now)
    await use(site.database, site.now + HOUR, 5_123_456)
    invoice = await invoiced(site)
    assert invoice.total == 20_000_000 + 5_123_456 - 3_000_000 - 1_500_001
    await site.documents.send()
    assert asked(site) == [(invoice.total_cents, invoice.total_cents, "paid")]
    lines = site.double.books.all("invoice", status="paid")[0]["lines"]["data"]
    assert [line["description"].split(",")[0] for line in lines] == [
        *("Plan team", "sapling", "Usage included in the plan", "Applied from your balance"),
    ]
    assert await differences(site) == []


async def test_a_month_partly_paid_in_advance_asks_for_the_rest(site: Site) -> None:
    """From invoices to the balance and back within the month."""
    await use(site.database, site.now + HOUR, 1_000_000)
    await prepaid(site.database, site.now + timedelta(days=1), site.now + timedelta(days=3))
    await use(site.database, site.now + timedelta(days=2), 40_000_000)
    await use(site.database, site.now + timedelta(days=4), 2_000_000)
    credits = CreditService(site.database, _redis(site))
    await credits.add(TENANT, "top_up", 40_000_000, "paid", OPERATOR, now=site.now)
    site.travel(CLOSING)
    await site.meter()
    invoice = await invoiced(site)
    await site.documents.send()
    assert asked(site) == [(300, 300, "paid")]
    assert invoice.total_cents == 300
    assert site.metered() == 3_000_000
    assert await differences(site) == []


async def test_what_is_taken_back_lowers_the_next_invoice_and_nothing_else(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_004_000)
    await invoiced(site)
    await site.documents.send()
    await use(site.database, CLOSING + HOUR, 3_000_000)
    await use(site.database, CLOSING + 2 * HOUR, -1_004_000)  # as a reversal counts
    site.travel(CLOSING + timedelta(days=10))
    await site.meter()
    await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    await site.documents.send()
    assert asked(site) == [(500, 500, "paid"), (200, 200, "paid")]
    assert site.double.books.get(site.customer, "customer")["balance"] == 0
    assert await differences(site) == []


@pytest.mark.parametrize("kind", ["rate_limited", "error", "unreachable", "lost"])
async def test_a_document_is_sent_once_through_any_fault_at_any_step(site: Site, kind: Any) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    await invoiced(site)
    for path in ("/v1/invoices", "/v1/invoices/", "/v1/invoices/"):
        site.double.fail(Fault(kind, path=path, method="POST"))
        await site.documents.send()
        site.wait(hours=30)  # keys are forgotten meanwhile
    await site.documents.send()
    assert asked(site) == [(500, 500, "paid")]
    assert await documents(site) == [("invoice", 500, "sent")]
    assert await differences(site) == []


@pytest.mark.parametrize("step", STEPS)
async def test_a_sender_killed_at_any_step_asks_once(step: str, site: Site, database_url: str) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    await invoiced(site)
    told = (database_url, site.double.url, API_KEY, step, site.now.isoformat())
    await end_killed("tests.support.killed_sender", *told)
    site.wait(days=2)
    await site.documents.send()
    assert asked(site) == [(500, 500, "paid")]
    assert await documents(site) == [("invoice", 500, "sent")]


async def test_notes_lower_what_is_owed_and_send_back_what_was_paid(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    invoice = await invoiced(site)
    site.double.card(site.customer, works=False)
    notes = CreditNotes(site.database, _redis(site))
    await notes.issue(TENANT, invoice.id, 120, "due", "late", OPERATOR, now=site.now)
    await site.documents.send()  # the invoice first, then its note
    assert await site.state() == ("grace", "grace")
    [owed] = await site.gateway.open_invoices(site.customer)
    assert (owed.total, owed.amount_remaining) == (500, 380)
    site.double.card(site.customer, works=True)
    site.double.routes.invoicing.pay(owed.id)
    await site.dunning.refresh_overdue(site.now)
    await match_payments(site.database, site.now)
    for cents, settlement in ((100, "refund"), (50, "credit")):
        await notes.issue(TENANT, invoice.id, cents, settlement, "why", OPERATOR, now=site.now)  # type: ignore[arg-type]
    site.double.fail(Fault("lost", path="/v1/credit_notes", method="POST"))
    for _ in range(3):
        await site.documents.send()
        site.wait(days=2)
    assert [one["amount"] for one in site.double.books.all("refund")] == [100]
    assert await documents(site) == [
        ("invoice", 500, "sent"),
        ("credit_note", 120, "sent"),
        ("credit_note", 100, "sent"),
    ]
    assert await differences(site) == []
    assert await site.state() == ("active", "active")


async def test_a_note_on_what_was_paid_meanwhile_is_sent_back(site: Site) -> None:
    """We heard of no payment yet, and took less as owed."""
    await use(site.database, site.now + HOUR, 5_000_000)
    invoice = await invoiced(site)
    await site.documents.send()
    notes = CreditNotes(site.database, _redis(site))
    await notes.issue(TENANT, invoice.id, 120, "due", "late", OPERATOR, now=site.now)
    await site.documents.send()
    assert [one["amount"] for one in site.double.books.all("refund")] == [120]
    assert await differences(site) == []


async def test_what_was_paid_otherwise_is_not_asked_for(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    first = await invoiced(site)
    await paid_by_wire(site, first, 450)
    await site.documents.send()
    assert asked(site) == [(50, 50, "paid")]
    await use(site.database, CLOSING + HOUR, 3_000_000)
    second = await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    await paid_by_wire(site, second, 300)
    await site.documents.send()
    assert len(asked(site)) == 1
    assert [state for *_, state in await documents(site)] == ["sent", "waived"]
    assert await differences(site) == []


async def test_what_is_less_than_can_be_charged_is_asked_for_with_the_next(site: Site) -> None:
    await use(site.database, site.now + HOUR, 494_999)
    first = await invoiced(site)
    await site.documents.send()
    assert (first.total_cents, asked(site), await documents(site)) == (0, [], [])
    await use(site.database, CLOSING + HOUR, 3_000_000)
    await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    await site.documents.send()
    assert asked(site) == [(349, 349, "paid")]
    [line, *_] = site.double.books.all("invoice", status="paid")[0]["lines"]["data"]
    assert (line["description"], line["amount"]) == (
        "Balance below the minimum charge, from the previous invoice",
        49,
    )
    assert site.double.books.get(site.customer, "customer")["balance"] == 0
    assert await differences(site) == []


async def test_what_stripe_carries_by_itself_is_charged_once(site: Site) -> None:
    """An invoice that was made before invoices knew of a smallest charge, and is asked for now."""
    await use(site.database, site.now + HOUR, 300_000)
    await invoiced(site, minimum_cents=0)
    await site.documents.send()
    assert asked(site) == [(30, 0, "paid")]
    assert site.double.books.get(site.customer, "customer")["balance"] == 30
    assert await site.state() == ("active", "active")
    await use(site.database, CLOSING + HOUR, 3_000_000)
    await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    await site.documents.send()
    assert asked(site) == [(30, 0, "paid"), (300, 330, "paid")]
    assert site.double.books.get(site.customer, "customer")["balance"] == 0
    assert await differences(site) == []


async def test_nobody_is_asked_or_suspended_for_less_than_can_be_charged(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    first = await invoiced(site)
    await paid_by_wire(site, first, 451)
    await site.documents.send()
    assert asked(site) == []
    assert [state for *_, state in await documents(site)] == ["waived"]
    await use(site.database, CLOSING + HOUR, 3_000_000)
    second = await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    site.double.card(site.customer, works=False)
    await site.documents.send()
    assert await site.state() == ("grace", "grace")
    notes = CreditNotes(site.database, _redis(site))
    await notes.issue(TENANT, second.id, 251, "due", "all but 49 cents", OPERATOR, now=site.now)
    await site.documents.send()
    assert await site.state() == ("active", "active")
    site.wait(days=30)
    await site.dunning.refresh_overdue(site.now)
    await site.dunning.refresh_all(site.now)
    assert await site.state() == ("active", "active")
    assert await differences(site) == []


async def paid_by_wire(site: Site, invoice: Invoice, cents: int) -> None:
    async with site.database.write(TENANT) as session:
        wire = f"wire {invoice.id}"
        await record_payment(session, TENANT, invoice.id, "payment", cents, wire, at=site.now)


async def test_an_invoice_that_somebody_changed_there_is_for_a_person(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    invoice = await invoiced(site)
    site.double.fail(Fault("unreachable", path="/v1/invoices/", method="POST"))
    await site.documents.send()
    [draft] = site.double.books.all("invoice", status="draft")
    site.double.routes.invoicing.add_lines(draft["id"], {"lines": [{"amount": "7", "description": "?"}]})
    site.wait(hours=1)
    await site.documents.send()
    queue = ManualQueue(site.database)
    [entry] = await queue.list()
    assert (entry.id, entry.amount, entry.hour) == (invoice.id, 5_000_000, None)
    assert "comes to 7 cents, not 500" in entry.why
    assert len(await differences(site)) == 1
    draft |= {"total": 0, "lines": draft["lines"] | {"data": []}}  # put right by hand
    await queue.send(entry.id, site.gateway, site.now)
    await site.documents.send()
    assert asked(site) == [(500, 500, "paid")]
    assert await differences(site) == []


async def test_amounts_that_differ_there_are_named(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    await invoiced(site)
    await site.documents.send()
    [there] = [one for one in site.double.books.all("invoice") if one["metadata"]]
    there["amount_paid"] = 499
    [found] = await differences(site)
    assert (found.expected, found.found) == (500, 499)  # type: ignore[attr-defined]


async def test_customers_are_named_as_invoices_do_and_again_when_that_changes(site: Site) -> None:
    accounts = BillingAccounts(site.database, _redis(site))
    assert await site.customers.push_details() == 1
    assert await site.customers.push_details() == 0
    customer = site.double.books.get(site.customer, "customer")
    assert customer["name"] == f"of {TENANT}"
    changes = {"name": "Acme GmbH", "email": "pay@acme.example", "country": "DE", "tax_id": "DE1"}
    await accounts.set_details(TENANT, OPERATOR, changes)
    site.double.fail(Fault("lost", path="/v1/customers/"))
    with pytest.raises(ProviderUnavailable):
        await site.customers.push_details()
    assert await site.customers.push_details() == 1
    assert (customer["name"], customer["email"]) == ("Acme GmbH", "pay@acme.example")
    async with site.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE billing_accounts SET email = 'nowhere'"))
    assert await site.customers.push_details() == 1
    assert await site.customers.push_details() == 0, "what was refused is not asked for again and again"
    async with site.database.read(EVERY_TENANT) as session:
        error = (await session.execute(text("SELECT provider_error FROM billing_accounts"))).scalar_one()
    assert "Invalid email address" in error
    await accounts.set_details(TENANT, OPERATOR, {"email": "pay@acme.example"})
    assert await site.customers.push_details() == 1


async def test_a_subscription_that_charged_for_the_meter_is_replaced(site: Site) -> None:
    [old] = site.double.books.all("subscription")
    old["items"]["data"][0]["price"] = old["items"]["data"][0]["price"] | {"id": "price_of_before"}
    site.wait(days=1)
    made = await site.customers.subscribe(TENANT, site.now)
    assert made.id != old["id"]
    assert [one["status"] for one in site.double.books.all("subscription")] == ["active", "canceled"]


async def upgraded_between(site: Site) -> str:
    """January was asked for by the meter, an hour after its end; the release after that replaces the
    subscription before January's invoice is made. The id of what was asked for.
    """
    [old] = site.double.books.all("subscription")
    price = old["items"]["data"][0]["price"]
    old["items"]["data"][0]["price"] = price | {"id": "price_of_before", "unit_amount_decimal": "0.0001"}
    site.travel(CLOSING - timedelta(days=1, hours=1, minutes=30))
    await site.meter()
    site.wait(hours=3)
    [asked] = [one for one in site.double.books.all("invoice") if one["total"]]
    async with site.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE billing_accounts SET stripe_subscription_id = NULL"))
    assert await site.customers.subscribe_all(site.now) == 1
    return str(asked["id"])


async def test_what_the_meter_was_paid_for_before_an_upgrade_is_not_asked_for_again(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    await upgraded_between(site)
    await use(site.database, site.now - timedelta(days=9), 1_000_000)  # recorded late: the meter had it not
    invoice = await invoiced(site)
    assert invoice.total_cents == 600
    await site.documents.send()
    assert asked(site) == [(100, 100, "paid")]
    await match_payments(site.database, site.now)
    async with site.database.read(EVERY_TENANT) as session:
        query = text("SELECT sum(amount_cents) FROM invoice_payments WHERE invoice_id = :id")
        assert (await session.execute(query, {"id": invoice.id})).scalar_one() == 600
    assert await differences(site) == []
    # The month after, nothing is left of it.
    await use(site.database, CLOSING + HOUR, 3_000_000)
    await invoiced(site, date(2027, 2, 1), datetime(2027, 3, 2, 1, tzinfo=UTC))
    await site.documents.send()
    assert asked(site) == [(100, 100, "paid"), (300, 300, "paid")]


async def test_what_the_meter_still_asks_for_after_an_upgrade_is_for_a_person(site: Site) -> None:
    await use(site.database, site.now + HOUR, 5_000_000)
    site.double.card(site.customer, works=False)
    asked_for = await upgraded_between(site)
    invoice = await invoiced(site)
    await site.documents.send()
    assert asked(site) == []
    [one] = await ManualQueue(site.database).list()
    assert asked_for in one.why
    assert "2027-01" in one.why
    site.double.routes.invoicing.void(asked_for)
    site.double.card(site.customer, works=True)
    await ManualQueue(site.database).send(one.id, site.gateway, site.now)
    await site.documents.send()
    assert asked(site) == [(500, 500, "paid")]
    assert invoice.total_cents == 500
    assert await differences(site) == []


@given(st.lists(st.integers(-50_000, 90_000), min_size=1, max_size=400))
def test_lines_in_whole_cents_add_up(amounts: list[int]) -> None:
    total = max(1_000_000, sum(amounts))
    amounts = [*amounts, total - sum(amounts)]
    lines = tuple(Line("usage", JANUARY, f"line {number}", one) for number, one in enumerate(amounts))
    cents, rest = in_cents(total)
    bill = InvoiceView(
        "inv_a", 1, TENANT, JANUARY, CLOSING, CLOSING, total, cents, rest, {}, {"name": "Acme"}, lines
    )  # fmt: skip
    made = provider_lines(bill, cents)
    assert sum(amount for _, amount in made) == cents
    assert len(made) <= 200
    assert all(amount for _, amount in made)
    if len(amounts) < 200:
        exact = {line.description: line.amount for line in lines}
        assert all(abs(exact[name] - amount * 10_000) <= 10_000 for name, amount in made)
    part = provider_lines(replace(bill), cents - 5)
    assert part[-1] == ("Paid already", -5)
    assert sum(amount for _, amount in part) == cents - 5
