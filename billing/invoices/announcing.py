"""Notifies a tenant that an invoice is final, in the transaction that makes it final."""

from __future__ import annotations

from billing.invoices.models import Invoice
from billing.notifications.events import INVOICE_FINALIZED
from billing.notifications.publishing import publish
from db.session import WriteSession


async def announce(session: WriteSession, invoice: Invoice) -> None:
    """Publishes the event. Used as `billing.invoices.service.OnFinal`."""
    facts = {
        "invoice_id": invoice.id,
        "number": invoice.number,
        "month": f"{invoice.month:%Y-%m}",
        "total_cents": invoice.total_cents,
    }
    await publish(
        session, invoice.tenant_id, INVOICE_FINALIZED, facts, key=f"invoice.finalized:{invoice.id}",
        now=invoice.issued_at,
    )  # fmt: skip
