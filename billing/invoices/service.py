"""Invoices: previewed, made final, read; payments for them noted.

An invoice is final the moment it exists; making it is one transaction with its number, its lines, what it
takes from the balance and its audit entry, so a process killed anywhere leaves all of it or nothing, and no
gap in the numbers. Refuses to know when months are closed (`billing.invoices.closing`) and how money is
collected (`billing.payments`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Literal

import redis.asyncio

from billing.errors import InvalidBillingMonth
from billing.invoices.credits import CreditKind, record_credit
from billing.invoices.drafting import Books, InvoiceDraft, draft
from billing.invoices.errors import InvoiceNotFound, MonthSettled
from billing.invoices.models import Invoice, InvoiceLine, InvoicePayment
from billing.invoices.repository import (
    AccountRepository,
    InvoiceRepository,
    InvoicingContext,
    MonthRepository,
)
from billing.invoices.settings import InvoiceSettings
from billing.invoices.views import InvoiceView, invoice_view
from billing.months import begin, following, month_of
from billing.rollups import hold_ledger
from db.base import new_id
from db.session import EVERY_TENANT, Database, ReadSession, WriteSession
from tenants.actors import SYSTEM
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound

OnFinal = Callable[[WriteSession, Invoice], Awaitable[None]]
"""Told of a new invoice within its transaction."""


class InvoiceService:
    """Every tenant's invoices."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        settings: InvoiceSettings,
        *,
        on_final: Sequence[OnFinal] = (),
        minimum_cents: int = 0,
    ) -> None:
        """`minimum_cents`: the least that whoever collects can charge; less is carried on."""
        self._database = database
        self._redis = redis_client
        self.settings = settings
        self._on_final = tuple(on_final)
        self._minimum_cents = minimum_cents

    async def list(
        self,
        tenant_id: str,
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
        with_lines: bool = True,
    ) -> list[InvoiceView]:
        """`with_lines`: not where only sums are shown, as lines are many."""
        async with self._database.read(tenant_id) as session:
            repository = InvoiceRepository(session, tenant_id)
            rows = await repository.page(after=after, limit=limit, newest_first=newest_first)
            return await invoice_views(repository, rows, with_lines=with_lines)

    async def find(self, tenant_id: str, invoice_id: str) -> InvoiceView:
        """Raises InvoiceNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = InvoiceRepository(session, tenant_id)
            row = await repository.find(invoice_id)
            if row is None:
                raise InvoiceNotFound(invoice_id)
            return (await invoice_views(repository, [row]))[0]

    async def owner(self, invoice_id: str) -> str:
        """Whose it is, for the operator. Raises InvoiceNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await MonthRepository(session).owner(invoice_id)
        if found is None:
            raise InvoiceNotFound(invoice_id)
        return found

    async def preview(self, tenant_id: str, month: date, *, now: datetime) -> InvoiceView:
        """The month's invoice, if there is one; else what it would be if nothing more were used.

        Raises InvalidBillingMonth for a month that has not begun, TenantNotFound.
        """
        if begin(month) > now:
            raise InvalidBillingMonth(f"month must have begun, {month:%Y-%m} has not")
        async with self._database.read(tenant_id) as session:
            standing = await standing_of(session, tenant_id)
            books = Books(session, tenant_id, was_prepaid=standing.was_prepaid)
            return await self.previewed(books, standing, month, now)

    async def previewed(
        self, books: Books, standing: InvoicingContext, month: date, now: datetime
    ) -> InvoiceView:
        """The same within a transaction that is open: of a month that has begun."""
        tenant_id, latest = standing.tenant.id, standing.latest
        if latest is not None and latest.month >= month:
            row = latest if latest.month == month else await books.invoices.of_month(month)
            if row is not None:
                return (await invoice_views(books.invoices, [row]))[0]
        made = await draft(books, standing, month, in_thought=True, minimum_cents=self._minimum_cents)
        bill = made.bill
        issued = max(now, begin(following(month)))
        return InvoiceView(
            None, None, tenant_id, month, issued, issued + timedelta(days=self.settings.due_days), bill.total,
            bill.total_cents, bill.carried_out, self.settings.seller, made.customer, bill.lines,
        )  # fmt: skip

    async def finalize(self, tenant_id: str, month: date, *, now: datetime) -> Invoice | None:
        """Make the invoice of a month that is over; None when there is nothing to invoice, or the month is
        closed already. Again, the one there is. Raises InvalidBillingMonth, TenantNotFound.
        """
        if month >= month_of(now):
            raise InvalidBillingMonth(f"month must be over, {month:%Y-%m} is not")
        async with self._database.write(tenant_id) as session:
            await AccountRepository(session, tenant_id).hold()
            repository = InvoiceRepository(session, tenant_id)
            known = await repository.of_month(month)
            if known is not None:
                return known
            await hold_ledger(session)  # all queries below see one state of it
            standing = await standing_of(session, tenant_id)
            try:
                books = Books(session, tenant_id)
                made = await draft(
                    books, standing, month, in_thought=False, minimum_cents=self._minimum_cents
                )
            except MonthSettled:
                return None
            if made.bill.owed_nothing:
                return None
            invoice = await self._write(repository, made, month, now)
            for told in self._on_final:
                await told(session, invoice)
            moved: tuple[tuple[CreditKind, int], ...] = (
                ("kept", made.bill.of("kept")),
                ("applied", made.bill.of("credit")),
            )
            for kind, amount in moved:
                if amount:
                    await record_credit(
                        session, self._redis, tenant_id, kind, amount, invoice.id, SYSTEM, at=now,
                        invoice_id=invoice.id,
                    )  # fmt: skip
            await AuditLog.record(
                session,
                tenant_id,
                SYSTEM,
                "invoice.finalized",
                ("invoice", invoice.id),
                {"number": invoice.number, "month": f"{month:%Y-%m}", "total_cents": invoice.total_cents},
            )
        return invoice

    async def _write(
        self, repository: InvoiceRepository, made: InvoiceDraft, month: date, now: datetime
    ) -> Invoice:
        """The invoice and its lines, with the next number."""
        invoice = Invoice(
            id=new_id("inv"),
            tenant_id=repository.tenant_id,
            number=await repository.next_number("invoice"),
            month=month,
            issued_at=now,
            due_at=now + timedelta(days=self.settings.due_days),
            currency="usd",
            total=made.bill.total,
            total_cents=made.bill.total_cents,
            carried_out=made.bill.carried_out,
            minimum_cents=self._minimum_cents,
            seller=self.settings.seller,
            customer=made.customer,
        )
        repository.add_own(invoice)
        await repository.session.flush()
        for number, line in enumerate(made.bill.lines, 1):
            repository.add_own(
                InvoiceLine(
                    invoice_id=invoice.id,
                    number=number,
                    tenant_id=repository.tenant_id,
                    kind=line.kind,
                    month=line.month,
                    description=line.description,
                    details=line.details,
                    amount=line.amount,
                )
            )
        await repository.session.flush()
        return invoice


async def record_payment(
    session: WriteSession,
    tenant_id: str,
    invoice_id: str,
    kind: Literal["payment", "refund"],
    amount_cents: int,
    reference: str,
    *,
    at: datetime,
) -> InvoicePayment:
    """Note money that came for an invoice, or went back (`amount_cents` positive either way), once per kind
    and reference. Raises InvoiceNotFound, ValueError.
    """
    if amount_cents <= 0:
        raise ValueError(f"amount_cents must be positive, not {amount_cents}")
    await AccountRepository(session, tenant_id).hold()
    repository = InvoiceRepository(session, tenant_id)
    known = await repository.payment(kind, reference)
    if known is not None:
        return known
    if await repository.find(invoice_id) is None:
        raise InvoiceNotFound(invoice_id)
    payment = InvoicePayment(
        id=new_id("pay"),
        tenant_id=tenant_id,
        invoice_id=invoice_id,
        at=at,
        kind=kind,
        amount_cents=amount_cents if kind == "payment" else -amount_cents,
        reference=reference,
    )
    repository.add_own(payment)
    await session.flush()
    return payment


async def standing_of(session: ReadSession | WriteSession, tenant_id: str) -> InvoicingContext:
    """Raises TenantNotFound."""
    found = await AccountRepository(session, tenant_id).standing()
    if found is None:
        raise TenantNotFound(tenant_id)
    return found


async def invoice_views(
    repository: InvoiceRepository, rows: Sequence[Invoice], *, with_lines: bool = True
) -> list[InvoiceView]:
    """Of rows within a transaction that is open."""
    ids = [row.id for row in rows]
    if not ids:
        return []
    lines = await repository.lines(ids) if with_lines else []
    notes, payments = await repository.notes(ids), await repository.payments(ids)
    return [invoice_view(row, lines, notes, payments) for row in rows]
