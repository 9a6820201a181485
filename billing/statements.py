"""Reads a tenant's billing statement: the running month's invoice preview, daily costs, balance and debts.

Everything is read in one transaction, and what the preview needs is read once. `billing.invoices` drafts the
preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from billing.invoices.accounts import BillingAccountView, account_of
from billing.invoices.credits import Balance
from billing.invoices.drafting import Books
from billing.invoices.models import CreditEntry
from billing.invoices.repository import AccountRepository
from billing.invoices.service import InvoiceService, invoicing_context
from billing.invoices.views import InvoiceView
from billing.months import month_of
from billing.payments.models import ProviderInvoice
from billing.payments.repository import PaymentRecords
from billing.totals import LedgerTotals
from db.session import Database

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Statement:
    """A tenant's billing state at one moment."""

    account: BillingAccountView
    preview: InvoiceView
    """The invoice that the running month would have now."""
    days: list[tuple[date, int]]
    """The cost of each day in micro-USD, days without usage included, today last."""
    balance: Balance
    credits: list[CreditEntry]
    """The latest credits of the balance, the newest first."""
    owed: list[ProviderInvoice]
    """Invoices that are open at the payment provider."""


class Statements:
    """Reads the statement of any tenant."""

    def __init__(self, database: Database, invoices: InvoiceService) -> None:
        self._database = database
        self._invoices = invoices

    async def of(self, tenant_id: str, *, now: datetime, since: datetime, num_credits: int) -> Statement:
        """Returns the statement with daily costs from `since` (a start of a day). Raises TenantNotFound,
        DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            context = await invoicing_context(session, tenant_id)
            books = Books(session, tenant_id, was_prepaid=context.was_prepaid)
            preview = await self._invoices.previewed(books, context, month_of(now), now)
            until = now.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
            costs = await LedgerTotals(session, tenant_id).by_day(since, until)
            days = [(since + number * _DAY).date() for number in range((until - since).days)]
            return Statement(
                account_of(tenant_id, context.account),
                preview,
                [(day, costs.get(day, 0)) for day in days],
                Balance(context.credits, await books.drawn()),
                await AccountRepository(session, tenant_id).credits(limit=num_credits),
                await PaymentRecords(session).owed_invoices(tenant_id),
            )
