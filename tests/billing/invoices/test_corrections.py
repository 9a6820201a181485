"""Credit notes, refunds and payments of invoices."""

from __future__ import annotations

from datetime import datetime

import pytest

from billing.invoices.corrections import CreditNotes
from billing.invoices.errors import CreditNotAllowed, InvoiceNotFound
from billing.invoices.service import record_payment
from tenants.actors import OPERATOR
from tests.billing.invoices.conftest import NOVEMBER, OCTOBER, Business, at

NOW = at(NOVEMBER, 10)


@pytest.fixture
def notes(business: Business) -> CreditNotes:
    return CreditNotes(business.database, business.redis)


async def invoiced(business: Business, cents: int = 100) -> tuple[str, str]:
    """A tenant and its invoice."""
    acme = await business.tenant()
    await business.use(acme.id, at(OCTOBER), cents * 10_000)
    await business.close(at(NOVEMBER, 2))
    invoice = await business.invoice(acme.id, OCTOBER)
    assert invoice.id is not None
    return acme.id, invoice.id


async def pay(business: Business, tenant: str, invoice: str, cents: int, when: datetime = NOW) -> None:
    async with business.database.write(tenant) as session:
        await record_payment(session, tenant, invoice, "payment", cents, f"py_{cents}", at=when)


async def test_a_payment_counts_once_and_pays_the_invoice(business: Business) -> None:
    tenant, invoice = await invoiced(business)
    assert (await business.invoices.find(tenant, invoice)).status == "open"
    for _ in range(2):
        await pay(business, tenant, invoice, 100)
    paid = await business.invoices.find(tenant, invoice)
    assert (paid.status, paid.due_cents, len(paid.payments)) == ("paid", 0, 1)
    with pytest.raises(InvoiceNotFound):
        await pay(business, tenant, "inv_nobodys", 1)


async def test_what_is_owed_can_be_lowered_and_no_further(business: Business, notes: CreditNotes) -> None:
    tenant, invoice = await invoiced(business)
    await notes.issue(tenant, invoice, 30, "due", "slow week", OPERATOR, now=NOW)
    await pay(business, tenant, invoice, 50)
    with pytest.raises(CreditNotAllowed, match="at most 20"):
        await notes.issue(tenant, invoice, 21, "due", "more", OPERATOR, now=NOW)
    await notes.issue(tenant, invoice, 20, "due", "the rest", OPERATOR, now=NOW)
    view = await business.invoices.find(tenant, invoice)
    assert (view.status, [note.number for note in view.notes]) == ("paid", [1, 2])
    assert view.total_cents == 100, "the invoice itself stays as it was"


async def test_what_was_paid_goes_back_once(business: Business, notes: CreditNotes) -> None:
    tenant, invoice = await invoiced(business)
    with pytest.raises(CreditNotAllowed, match="at most 0"):
        await notes.issue(tenant, invoice, 1, "refund", "nothing paid yet", OPERATOR, now=NOW)
    await pay(business, tenant, invoice, 100)
    await notes.issue(tenant, invoice, 60, "credit", "outage", OPERATOR, now=NOW)
    await notes.issue(tenant, invoice, 40, "refund", "outage", OPERATOR, now=NOW)
    for settlement in ("credit", "refund", "due"):
        with pytest.raises(CreditNotAllowed, match="at most 0"):
            await notes.issue(tenant, invoice, 1, settlement, "more", OPERATOR, now=NOW)  # type: ignore[arg-type]
    assert (await business.credits.balance(tenant)).amount == 600_000
    view = await business.invoices.find(tenant, invoice)
    assert [(one.kind, one.amount_cents) for one in view.payments] == [("payment", 100), ("refund", -40)]
    assert view.status == "paid"


async def test_numbers_of_notes_have_no_gap_where_one_was_refused(
    business: Business, notes: CreditNotes
) -> None:
    tenant, invoice = await invoiced(business)
    with pytest.raises(CreditNotAllowed):
        await notes.issue(tenant, invoice, 101, "due", "too much", OPERATOR, now=NOW)
    with pytest.raises(ValueError, match="reason"):
        await notes.issue(tenant, invoice, 1, "due", "", OPERATOR, now=NOW)
    assert (await notes.issue(tenant, invoice, 1, "due", "goodwill", OPERATOR, now=NOW)).number == 1
