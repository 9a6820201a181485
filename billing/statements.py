"""A tenant's statement: what its month comes to so far, day by day, what it owes and what is in its balance.

All of it is read in one transaction, and what a bill is drafted from is not asked for twice. Owns what
belongs to it. Refuses to know how a bill is made, and how any of it is put into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from billing.invoices.accounts import BillingAccountView, account_of
from billing.invoices.credits import Balance
from billing.invoices.drafting import Books
from billing.invoices.models import CreditEntry
from billing.invoices.repository import AccountRepository
from billing.invoices.service import InvoiceService, standing_of
from billing.invoices.views import InvoiceView
from billing.months import month_of
from billing.payments.models import ProviderInvoice
from billing.payments.repository import PaymentRecords
from billing.totals import LedgerTotals
from db.session import Database

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Statement:
    """As of one moment."""

    account: BillingAccountView
    preview: InvoiceView
    """Of the month that runs."""
    days: list[tuple[date, int]]
    """What each day cost, in micro-USD: those without use among them, today the last."""
    balance: Balance
    credits: list[CreditEntry]
    """The latest of the balance, the newest first."""
    owed: list[ProviderInvoice]
    """Open at the payment provider."""


class Statements:
    """Everybody's."""

    def __init__(self, database: Database, invoices: InvoiceService) -> None:
        self._database = database
        self._invoices = invoices

    async def of(self, tenant_id: str, *, now: datetime, since: datetime, num_credits: int) -> Statement:
        """`since`: the beginning of the first of its days. Raises TenantNotFound, DatabaseUnavailable."""
        async with self._database.read(tenant_id) as session:
            standing = await standing_of(session, tenant_id)
            books = Books(session, tenant_id, was_prepaid=standing.was_prepaid)
            preview = await self._invoices.previewed(books, standing, month_of(now), now)
            until = now.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
            costs = await LedgerTotals(session, tenant_id).by_day(since, until)
            days = [(since + number * _DAY).date() for number in range((until - since).days)]
            return Statement(
                account_of(tenant_id, standing.account),
                preview,
                [(day, costs.get(day, 0)) for day in days],
                Balance(standing.credits, await books.drawn()),
                await AccountRepository(session, tenant_id).credits(limit=num_credits),
                await PaymentRecords(session).owed_invoices(tenant_id),
            )
