"""Issues credit notes, which take back all or part of an invoice.

What happens to the money is the note's settlement: `due` lowers what is not yet paid; of what was paid,
`credit` goes into the balance and `refund` is paid back. A wrong request or charge is reversed in the ledger
instead, which puts it on the next invoice: never do both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

import redis.asyncio

from billing.invoices.credits import record_credit
from billing.invoices.errors import CreditNotAllowed, InvoiceNotFound
from billing.invoices.models import CreditNote
from billing.invoices.repository import AccountRepository, InvoiceRepository
from billing.invoices.service import record_payment
from billing.invoices.views import due
from billing.rates import MICRO_USD_PER_CENT
from db.base import new_id
from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog

Settlement = Literal["due", "credit", "refund"]
SETTLEMENTS: tuple[Settlement, ...] = get_args(Settlement)


class CreditNotes:
    """Issues credit notes for all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def issue(
        self,
        tenant_id: str,
        invoice_id: str,
        amount_cents: int,
        settlement: Settlement,
        reason: str,
        actor: Actor,
        *,
        now: datetime,
        reference: str = "",
    ) -> CreditNote:
        """Takes back all or part of an invoice. A refund is recorded with the invoice's payments under
        `reference`, default the note's id; the caller sends the money.

        Raises InvoiceNotFound, ValueError, CreditNotAllowed for more than is owed (`due`) or more than was
        paid and not yet returned (the others).
        """
        if settlement not in SETTLEMENTS:
            raise ValueError(f"settlement must be one of {', '.join(SETTLEMENTS)}")
        if not 0 < len(reason) <= 500:
            raise ValueError("reason must have from 1 to 500 characters")
        async with self._database.write(tenant_id) as session:
            await AccountRepository(session, tenant_id).hold()
            repository = InvoiceRepository(session, tenant_id)
            most = await _most(repository, invoice_id, settlement)
            if not 0 < amount_cents <= most:
                raise CreditNotAllowed("amount_cents", amount_cents, most, "cents")
            note = CreditNote(
                id=new_id("cn"),
                tenant_id=tenant_id,
                number=await repository.next_number("credit_note"),
                invoice_id=invoice_id,
                issued_at=now,
                amount_cents=amount_cents,
                settlement=settlement,
                reason=reason,
                actor=actor.audit_fields(),
            )
            repository.add_own(note)
            await session.flush()
            await self._settle(session, note, actor, now, reference)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "credit_note.created",
                ("credit_note", note.id),
                {"invoice": invoice_id, "amount_cents": amount_cents, "settlement": settlement},
            )
        return note

    async def _settle(
        self, session: WriteSession, note: CreditNote, actor: Actor, now: datetime, reference: str
    ) -> None:
        if note.settlement == "refund":
            await record_payment(
                session,
                note.tenant_id,
                note.invoice_id,
                "refund",
                note.amount_cents,
                reference or note.id,
                at=now,
            )
        elif note.settlement == "credit":
            await record_credit(
                session,
                self._redis,
                note.tenant_id,
                "credit_note",
                note.amount_cents * MICRO_USD_PER_CENT,
                note.id,
                actor,
                at=now,
                reason=note.reason,
                invoice_id=note.invoice_id,
            )


async def _most(repository: InvoiceRepository, invoice_id: str, settlement: str) -> int:
    """Returns the cents that can be taken back with this settlement."""
    invoice = await repository.find(invoice_id)
    if invoice is None:
        raise InvoiceNotFound(invoice_id)
    notes, payments = await repository.notes([invoice_id]), await repository.payments([invoice_id])
    if settlement == "due":
        return max(0, due(invoice.total_cents, notes, payments))
    paid = sum(payment.amount_cents for payment in payments)  # refunds are negative
    return max(0, paid - sum(note.amount_cents for note in notes if note.settlement == "credit"))
