"""Sends our invoices and credit notes to the payment provider, which collects exactly what they say.

Each document is queued in the transaction that finalizes it, its lines are rounded to whole cents, and it is
created once even if the process dies on the way: each step has an idempotency key of its own, and before
anything is created again the provider is searched for it. A document that the provider refuses, or has with
another amount, waits for an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

import structlog

from billing.invoices.models import CreditNote, Invoice
from billing.invoices.repository import InvoiceRepository
from billing.invoices.service import record_payment
from billing.invoices.views import InvoiceView as Bill
from billing.invoices.views import invoice_view, note_name
from billing.months import span
from billing.payments.customers import Customers
from billing.payments.dunning import Dunning
from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import InvoiceView, PaymentGateway
from billing.payments.models import Document
from billing.payments.repository import SendingQueue
from billing.payments.sending import Sent, leave_to_operator
from billing.rates import MICRO_USD_PER_CENT
from db.session import EVERY_TENANT, Database, WriteSession

log = structlog.get_logger(__name__)

MOST_LINES = 200
"""The most lines on a provider's invoice; Stripe's limit is 250."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
CLAIMED = 8


async def queue_invoice(session: WriteSession, invoice: Invoice) -> None:
    """Queues an invoice with an amount for the provider. Used as `billing.invoices.service.OnFinal`."""
    if invoice.total_cents > 0:
        session.add(
            Document(
                id=invoice.id,
                tenant_id=invoice.tenant_id,
                kind="invoice",
                invoice_id=invoice.id,
                cents=invoice.total_cents,
                next_attempt_at=invoice.issued_at,
            )
        )


class DocumentSending:
    """Sends documents; several senders at the same time share the queue."""

    def __init__(
        self,
        database: Database,
        gateway: PaymentGateway,
        dunning: Dunning,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._customers = Customers(database, gateway)
        self._dunning = dunning
        self._clock = clock

    async def send(self) -> Sent:
        """Sends due documents until none is left or the provider is unavailable.

        Raises DatabaseUnavailable, RedisError.
        """
        done = Sent()
        async with self._database.write(EVERY_TENANT) as session:
            await SendingQueue(session).queue_notes(self._clock())
        while not done.unavailable and (claimed := await self._claim()):
            for document in claimed:
                await self._attempt(document, done)
        return done

    async def _claim(self) -> list[Document]:
        """Claims due documents and records the attempt before it is made."""
        now = self._clock()
        async with self._database.write(EVERY_TENANT) as session:
            claimed = list(await SendingQueue(session).due_documents(now, CLAIMED))
            for document in claimed:
                document.first_attempt_at = document.first_attempt_at or now
                document.last_attempt_at = now
                document.attempts += 1
                pause = FIRST_PAUSE * 2 ** min(document.attempts - 1, 10)
                document.next_attempt_at = now + min(pause, LONGEST_PAUSE)
        return claimed

    async def _attempt(self, document: Document, done: Sent) -> None:
        if done.unavailable:
            return
        error = ""
        try:
            send = self._send_invoice if document.kind == "invoice" else self._send_note
            await send(document)
        except ProviderUnavailable as away:
            done.unavailable, error = True, str(away)
            log.warning("document waits", kind=document.kind, document_id=document.id, error=str(away))
        except ProviderRefused as refused:
            error = str(refused)
        async with self._database.write(EVERY_TENANT) as session:
            row = await SendingQueue(session).lock(Document, document.id)
            if row.state != "pending":
                return
            row.error = error
            if not error:
                row.state, row.settled_at = "sent", self._clock()
                done.arrived += 1
            elif not done.unavailable:
                leave_to_operator(row, error, self._clock())
                done.manual += 1

    # Invoices -----------------------------------------------------------------------------------------------

    async def _send_invoice(self, document: Document) -> None:
        bill = await self._bill(document)
        made = await self._existing(document)
        if made is None:
            if await self._note_metered(document, bill.month):
                bill = await self._bill(document)
            cents = await self._settle_amount(document, bill)
            if cents is None:
                return
            customer = await self._customers.ensure(document.tenant_id)
            name = f"{bill.name}, {bill.month:%B %Y}"
            made = await self._gateway.documents.create_invoice(
                customer, document.tenant_id, document.id, name
            )
        await self._note_provider_id(document, made.id)
        if made.status == "draft":
            if made.total == 0:
                lines = provider_lines(bill, document.cents)
                made = await self._gateway.documents.add_lines(made.id, lines, document.id)
            _assert_amount(made, document)
            made = await self._gateway.documents.finalize(made.id, document.id)
        _assert_amount(made, document)
        # As a webhook would report it, but without its delay.
        await self._dunning.record(made, self._clock())

    async def _note_metered(self, document: Document, month: date) -> bool:
        """Records payments that an older release's subscription collected for the month's metered usage as
        payments of our invoice; returns whether there were any. Nothing is collected twice: a metered invoice
        that is not settled is left to an operator, who voids it or has it paid.
        """
        start, end = span(month)
        async with self._database.read(EVERY_TENANT) as session:
            if not await SendingQueue(session).was_metered_before(document.tenant_id, start):
                return False
        customer = await self._customers.ensure(document.tenant_id)
        noted = False
        for one in await self._gateway.documents.metered_invoices(customer, start, end):
            if one.status in ("draft", "open"):
                what = f"its own invoice {one.id} of {month:%Y-%m} asks for {one.total} cents"
                raise ProviderRefused(f"{what} and is {one.status}")
            paid = one.amount_paid if one.status == "paid" else 0
            if paid:
                async with self._database.write(document.tenant_id) as session:
                    tenant_id, now = document.tenant_id, self._clock()
                    await record_payment(session, tenant_id, document.id, "payment", paid, one.id, at=now)
                noted = True
        return noted

    async def _existing(self, document: Document) -> InvoiceView | None:
        """Returns the provider's invoice, if an earlier attempt may have created it."""
        if document.provider_id is not None:
            return await self._gateway.invoice(document.provider_id)
        if document.attempts == 1:
            return None
        customer = await self._customers.ensure(document.tenant_id)
        return await self._gateway.documents.find_invoice(customer, document.id)

    async def _bill(self, document: Document) -> Bill:
        async with self._database.read(document.tenant_id) as session:
            repository = InvoiceRepository(session, document.tenant_id)
            row = await repository.find(document.id)
            assert row is not None, "invoices are never deleted"
            payments = await repository.payments([row.id])
            return invoice_view(row, await repository.lines([row.id]), (), payments)

    async def _settle_amount(self, document: Document, bill: Bill) -> int | None:
        """Returns the cents to collect, less what was already paid otherwise; None if nothing is left."""
        async with self._database.write(EVERY_TENANT) as session:
            row = await SendingQueue(session).lock(Document, document.id)
            if bill.due_cents < max(1, bill.minimum_cents):
                rest = "paid otherwise, but for less than can be charged"
                row.error = rest if bill.due_cents > 0 else "paid otherwise"
                row.state, row.settled_at = "waived", self._clock()
                return None
            row.cents = document.cents = bill.due_cents
        return document.cents

    async def _note_provider_id(self, document: Document, provider_id: str) -> None:
        if document.provider_id != provider_id:
            async with self._database.write(EVERY_TENANT) as session:
                (await SendingQueue(session).lock(Document, document.id)).provider_id = provider_id

    # Credit notes -------------------------------------------------------------------------------------------

    async def _send_note(self, document: Document) -> None:
        async with self._database.read(EVERY_TENANT) as session:
            invoice = await session.get(Document, document.invoice_id)
            note = await session.get(CreditNote, document.id)
        assert invoice is not None
        assert invoice.provider_id is not None, "notes wait for their invoice"
        assert note is not None
        documents = self._gateway.documents
        found = await documents.find_credit_note(invoice.provider_id, document.id)
        if found is None:
            owed = (await self._gateway.invoice(invoice.provider_id)).amount_remaining
            found = await documents.create_credit_note(
                invoice.provider_id,
                document.id,
                f"{note_name(note.number)}: {note.reason}",
                document.cents,
                max(0, document.cents - owed),
            )
        await self._note_provider_id(document, found)
        await self._dunning.record(await self._gateway.invoice(invoice.provider_id), self._clock())


def provider_lines(bill: Bill, cents: int) -> Sequence[tuple[str, int]]:
    """Returns an invoice's lines in whole cents, which add up to `cents`.

    Each line is the rounded sum of all lines up to it less the rounded sum of the lines before it. Payments
    made otherwise are the last line.
    """
    lines, total, rounded_before = [], 0, 0
    for line in bill.lines:
        total += line.amount
        rounded = (total + MICRO_USD_PER_CENT // 2) // MICRO_USD_PER_CENT
        lines.append((line.description, rounded - rounded_before))
        rounded_before = rounded
    assert rounded_before == bill.total_cents
    lines = [line for line in lines if line[1]]
    if len(lines) > MOST_LINES:
        rest = sum(amount for _, amount in lines[MOST_LINES - 1 :])
        lines = [*lines[: MOST_LINES - 1], (f"All other lines of {bill.name}", rest)]
    return [*lines, *([("Paid already", cents - rounded_before)] if cents != rounded_before else [])]


def _assert_amount(made: InvoiceView, document: Document) -> None:
    if made.total != document.cents:
        raise ProviderRefused(f"its invoice {made.id} comes to {made.total} cents, not {document.cents}")
