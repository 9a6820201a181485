"""Drafts a tenant's bill of a month from the ledger and earlier invoices.

Previews and invoices use the same function, so the preview of a past month equals its invoice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from billing.errors import InvalidBillingMonth
from billing.invoices.credits import drawn_in
from billing.invoices.errors import MonthSettled
from billing.invoices.ledger import MonthLedger
from billing.invoices.lines import Bill, MonthBooks, bill, ledger_line
from billing.invoices.models import InvoiceLine, PrepaidPeriod
from billing.invoices.repository import (
    LEDGER_KINDS,
    AccountRepository,
    InvoiceRepository,
    InvoicingContext,
    PastPlan,
)
from billing.months import begin, between, following, span


@dataclass(frozen=True, slots=True)
class InvoiceDraft:
    """A bill, and the customer it is for."""

    bill: Bill
    customer: dict[str, str]


async def draft(
    books: Books, context: InvoicingContext, month: date, *, is_preview: bool, minimum_cents: int
) -> InvoiceDraft:
    """Drafts the bill of a month without an invoice, from the books as they are now.

    Earlier months that wait for their own invoices are billed first, `is_preview`, so that what they carry
    over and take from the balance is accounted for.

    Raises MonthSettled; unless `is_preview`, InvalidBillingMonth if an earlier month has no invoice yet.
    """
    tenant, latest = context.tenant, context.latest
    settled = _settled(context)
    if settled is not None and settled >= month:
        raise MonthSettled(month)
    carried = latest.carried_out if latest is not None else 0
    balance = context.credits - await books.drawn()
    unsettled = await books.unsettled(month)
    waiting = [one for one in (*unsettled, month) if settled is None or one > settled]
    next_one = month if settled is None else following(settled)
    plans = await books.plans(context, [*between(min(*waiting, next_one), following(month))])
    if settled is not None and plans[next_one].monthly_fee:
        waiting.append(next_one)  # the fee is due even without usage
    open_since = min(waiting)
    if open_since < month and not is_preview:
        raise InvalidBillingMonth(f"month {open_since:%Y-%m} is to be invoiced before {month:%Y-%m}")
    late = [await books.of(one) for one in unsettled if one < open_since]
    for one in between(open_since, following(month)):
        served = (tenant.disabled_at is None or tenant.disabled_at >= begin(one)) and (
            tenant.created_at < begin(following(one))
        )
        made = bill(
            await books.of(one),
            late,
            carried_in=carried,
            fee=plans[one].monthly_fee if served else 0,
            included=plans[one].included_usage,
            balance=balance,
            plan=plans[one].name,
            minimum_cents=minimum_cents,
        )
        if one < month and not made.owed_nothing:
            carried, late = made.carried_out, []
            balance += made.of("kept") + made.of("credit")
    return InvoiceDraft(made, customer_of(context))


def _settled(context: InvoicingContext) -> date | None:
    """Returns the last month that gets no invoice any more: it has one, or it was closed without one."""
    months = (context.last_closed, context.latest.month if context.latest is not None else None)
    return max((month for month in months if month is not None), default=None)


class Books:
    """A tenant's ledger by month and its invoiced lines, as one transaction sees them."""

    def __init__(self, session: AsyncSession, tenant_id: str, *, was_prepaid: bool = True) -> None:
        """`was_prepaid` False says that the tenant has no prepaid periods, so they are not read."""
        self.invoices = InvoiceRepository(session, tenant_id)
        self._ledger = MonthLedger(session, tenant_id)
        self._accounts = AccountRepository(session, tenant_id)
        self._known_periods: list[PrepaidPeriod] | None = None if was_prepaid else []
        self._known_drawn: int | None = None

    async def _periods(self) -> list[PrepaidPeriod]:
        if self._known_periods is None:
            self._known_periods = await self._accounts.periods()
        return self._known_periods

    async def drawn(self) -> int:
        """Returns micro-USD that the balance paid in all prepaid periods."""
        if self._known_drawn is None:
            self._known_drawn = await drawn_in(self._ledger, await self._periods())
        return self._known_drawn

    async def of(self, month: date) -> MonthBooks:
        invoiced = await self.invoices.lines_for(month)
        return MonthBooks(
            month,
            await self._ledger.lines(month),
            await self.covered(month),
            [ledger_line(line.kind, line.details, line.amount) for line in invoiced if _of_ledger(line)],
            -sum(line.amount for line in invoiced if line.kind == "prepaid"),
        )

    async def covered(self, month: date) -> int:
        """Returns micro-USD of a month that the balance paid."""
        start, end = span(month)
        covered = 0
        for period in await self._periods():
            since, until = max(start, period.since), min(end, period.until or end)
            if since < until:
                covered += await self._ledger.total(since, until)
        return covered

    async def plans(self, context: InvoicingContext, months: Sequence[date]) -> dict[date, PastPlan]:
        """Returns each month's plan and fees when it ended, or now while it lasts."""
        plan, now = context.plan, datetime.now(UTC)
        today = PastPlan("", 0, 0)
        if plan is not None:
            today = PastPlan(plan.name, plan.monthly_fee, plan.included_usage)
        over = [month for month in months if begin(following(month)) <= now]
        return dict.fromkeys(months, today) | (await self._accounts.past_plans(over) if over else {})

    async def unsettled(self, before: date) -> list[date]:
        """Returns months before then whose ledger differs from what was invoiced."""
        return await self.invoices.unsettled(before)


def _of_ledger(line: InvoiceLine) -> bool:
    return line.kind in LEDGER_KINDS


def customer_of(context: InvoicingContext) -> dict[str, str]:
    """Returns the customer that a bill made now names."""
    tenant, row = context.tenant, context.account
    if row is None:
        return {"tenant_id": tenant.id, "name": tenant.name}
    details = {name: getattr(row, name) for name in ("email", "address", "country", "tax_id")}
    return {"tenant_id": tenant.id, "name": row.name or tenant.name} | {
        name: value for name, value in details.items() if value
    }
