"""Reports what tenants use side by side, for the operator. A tenant's own: `billing.service`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from billing.customers.repository import CustomerSums
from billing.invoices.accounts import BillingAccountView, account_of
from billing.invoices.credits import Balance
from billing.invoices.drafting import Books
from billing.invoices.service import invoice_views, invoicing_context
from billing.invoices.views import InvoiceView
from billing.months import month_of, span
from db.session import EVERY_TENANT, Database, ReadSession


@dataclass(frozen=True, slots=True)
class CustomerUse:
    """The usage of one tenant in a month."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spend: int = 0
    """Micro-USD of requests and charges."""
    last_at: datetime | None = None
    """The minute of its latest request, in any month."""


@dataclass(frozen=True, slots=True)
class Customer:
    """One tenant's use, billing account and balance, as the operator sees them."""

    use: CustomerUse
    account: BillingAccountView
    balance: Balance
    invoices: list[InvoiceView]
    """The latest invoices, without their lines."""


class CustomerReports:
    """Reports from the rollups, never from the ledger's rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def month(self, tenant_ids: Sequence[str], now: datetime) -> dict[str, CustomerUse]:
        """Returns the use of the month of `now` so far, by tenant. Raises DatabaseUnavailable."""
        if not tenant_ids:
            return {}
        async with self._database.read(EVERY_TENANT) as session:
            return await _uses(session, tenant_ids, now)

    async def tokens_by_day(
        self, tenant_ids: Sequence[str], now: datetime, num_days: int
    ) -> dict[str, list[int]]:
        """Returns input and output tokens of the last `num_days` UTC days, the current one last, by tenant.
        Raises DatabaseUnavailable.
        """
        found = {id: [0] * num_days for id in tenant_ids}
        if not found:
            return {}
        today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        start, end = today - timedelta(days=num_days - 1), today + timedelta(days=1)
        async with self._database.read(EVERY_TENANT) as session:
            for id, day, tokens in await CustomerSums(session).tokens_by_day(tenant_ids, start, end):
                found[id][(day - start).days] = tokens
        return found

    async def one(self, tenant_id: str, now: datetime, *, num_invoices: int) -> Customer:
        """Returns one tenant with its latest invoices. Raises TenantNotFound, DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            context = await invoicing_context(session, tenant_id)
            books = Books(session, tenant_id, was_prepaid=context.was_prepaid)
            invoices = await books.invoices.page(limit=num_invoices)
            return Customer(
                (await _uses(session, [tenant_id], now))[tenant_id],
                account_of(tenant_id, context.account),
                Balance(context.credits, await books.drawn()),
                await invoice_views(books.invoices, invoices, with_lines=False),
            )


async def _uses(session: ReadSession, tenant_ids: Sequence[str], now: datetime) -> dict[str, CustomerUse]:
    rows = await CustomerSums(session).uses(tenant_ids, *span(month_of(now)))
    return {id: CustomerUse(*use) for id, *use in rows}
