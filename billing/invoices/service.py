"""Finalizes invoices, previews and reads them, and records their payments.

An invoice is final the moment it exists. It is made in one transaction with its number, its lines, what it
takes from the balance and its audit entry, so a process killed anywhere leaves all of it or nothing, and no
gap in the numbers. `billing.invoices.closing` decides when months are closed, `billing.payments` collects the
money.
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
"""Called with a new invoice within its transaction."""


class InvoiceService:
    """Manages the invoices of all tenants."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        settings: InvoiceSettings,
        *,
        on_final: Sequence[OnFinal] = (),
        minimum_cents: int = 0,
    ) -> None:
        """`minimum_cents` is the smallest amount that can be charged; less is carried to the next invoice."""
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
        """Returns a page of invoices, without their many lines unless `with_lines`."""
        async with self._database.read(tenant_id) as session:
            repository = InvoiceRepository(session, tenant_id)
            rows = await repository.page(after=after, limit=limit, newest_first=newest_first)
            return await invoice_views(repository, rows, with_lines=with_lines)

    async def find(self, tenant_id: str, invoice_id: str) -> InvoiceView:
        """Returns an invoice. Raises InvoiceNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = InvoiceRepository(session, tenant_id)
            row = await repository.find(invoice_id)
            if row is None:
                raise InvoiceNotFound(invoice_id)
            return (await invoice_views(repository, [row]))[0]

    async def owner(self, invoice_id: str) -> str:
        """Returns the id of the invoice's tenant, for the operator. Raises InvoiceNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await MonthRepository(session).owner(invoice_id)
        if found is None:
            raise InvoiceNotFound(invoice_id)
        return found

    async def preview(self, tenant_id: str, month: date, *, now: datetime) -> InvoiceView:
        """Returns the month's invoice if there is one, else what it would be without further usage.

        Raises InvalidBillingMonth for a month that has not begun, TenantNotFound.
        """
        if begin(month) > now:
            raise InvalidBillingMonth(f"month must have begun, {month:%Y-%m} has not")
        async with self._database.read(tenant_id) as session:
            context = await invoicing_context(session, tenant_id)
            books = Books(session, tenant_id, was_prepaid=context.was_prepaid)
            return await self.previewed(books, context, month, now)

    async def previewed(
        self, books: Books, context: InvoicingContext, month: date, now: datetime
    ) -> InvoiceView:
        """Does the same within an open transaction, for a month that has begun."""
        tenant_id, latest = context.tenant.id, context.latest
        if latest is not None and latest.month >= month:
            row = latest if latest.month == month else await books.invoices.of_month(month)
            if row is not None:
                return (await invoice_views(books.invoices, [row]))[0]
        made = await draft(books, context, month, is_preview=True, minimum_cents=self._minimum_cents)
        bill = made.bill
        issued = max(now, begin(following(month)))
        return InvoiceView(
            None, None, tenant_id, month, issued, issued + timedelta(days=self.settings.due_days), bill.total,
            bill.total_cents, bill.carried_out, self.settings.seller, made.customer, bill.lines,
        )  # fmt: skip

    async def finalize(self, tenant_id: str, month: date, *, now: datetime) -> Invoice | None:
        """Makes the invoice of a past month and returns it, or the existing one; None when there is nothing
        to invoice, or the month is closed already. Raises InvalidBillingMonth, TenantNotFound.
        """
        if month >= month_of(now):
            raise InvalidBillingMonth(f"month must be over, {month:%Y-%m} is not")
        async with self._database.write(tenant_id) as session:
            await AccountRepository(session, tenant_id).hold()
            repository = InvoiceRepository(session, tenant_id)
            known = await repository.of_month(month)
            if known is not None:
                return known
            await hold_ledger(session)  # so that all queries below see one state of it
            context = await invoicing_context(session, tenant_id)
            try:
                books = Books(session, tenant_id)
                made = await draft(books, context, month, is_preview=False, minimum_cents=self._minimum_cents)
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
        """Adds the invoice and its lines, with the next number."""
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
    """Records a payment of an invoice or a refund (`amount_cents` is positive either way), once per kind and
    reference. Raises InvoiceNotFound, ValueError.
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


async def invoicing_context(session: ReadSession | WriteSession, tenant_id: str) -> InvoicingContext:
    """Returns what a tenant's bill needs besides its usage. Raises TenantNotFound."""
    found = await AccountRepository(session, tenant_id).invoicing_context()
    if found is None:
        raise TenantNotFound(tenant_id)
    return found


async def invoice_views(
    repository: InvoiceRepository, rows: Sequence[Invoice], *, with_lines: bool = True
) -> list[InvoiceView]:
    """Returns views of rows, within an open transaction."""
    ids = [row.id for row in rows]
    if not ids:
        return []
    lines = await repository.lines(ids) if with_lines else []
    notes, payments = await repository.notes(ids), await repository.payments(ids)
    return [invoice_view(row, lines, notes, payments) for row in rows]
