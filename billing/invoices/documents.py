"""An invoice as what is handed out of it: the JSON that the API serves, and the PDF.

Owns the JSON's form and that one PDF is drawn at a time. Amounts are in micro-USD where their name says so,
in cents where it says that; floats nowhere. Refuses to know who asks.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from typing import Any

from billing.invoices.lines import Line
from billing.invoices.models import CreditNote, InvoicePayment
from billing.invoices.views import InvoiceView, line_details, note_name
from billing.months import begin, following

# One at a time: drawing takes a processor's time that requests on models wait for.
_drawing = ThreadPoolExecutor(1, thread_name_prefix="invoice-pdf")


async def invoice_pdf(invoice: InvoiceView) -> bytes:
    """The document."""
    return await asyncio.get_running_loop().run_in_executor(_drawing, _drawn, invoice)


def file_name(invoice: InvoiceView) -> str:
    """Of the document, without what says its kind."""
    return invoice.name if invoice.number else f"preview-{invoice.month:%Y-%m}"


def invoice_object(invoice: InvoiceView, *, with_lines: bool = True) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": invoice.id,
        "object": "organization.invoice",
        "number": invoice.name if invoice.number else None,
        "status": invoice.status,
        "month": f"{invoice.month:%Y-%m}",
        "period_start": _unix(begin(invoice.month)),
        "period_end": _unix(begin(following(invoice.month))),
        "issued_at": _unix(invoice.issued_at) if invoice.number else None,
        "due_at": _unix(invoice.due_at) if invoice.number else None,
        "currency": "usd",
        "total_micro_usd": invoice.total,
        "total_cents": invoice.total_cents,
        "carried_to_next_micro_usd": invoice.carried_out,
        "due_cents": max(0, invoice.due_cents),
        "seller": invoice.seller,
        "customer": invoice.customer,
        "credit_notes": [_note(note) for note in invoice.notes],
        "payments": [_payment(payment) for payment in invoice.payments],
    }
    if with_lines:
        shown["lines"] = [_line(line, invoice.month) for line in invoice.lines]
    return shown


def _line(line: Line, month: date) -> dict[str, Any]:
    return {
        "object": "organization.invoice.line",
        "kind": line.kind,
        "month": f"{line.month:%Y-%m}",
        "late": line.month < month,
        "description": line.description,
        "amount_micro_usd": line.amount,
        **line_details(line),
    }


def _note(note: CreditNote) -> dict[str, Any]:
    return {
        "id": note.id,
        "object": "organization.credit_note",
        "number": note_name(note.number),
        "issued_at": _unix(note.issued_at),
        "amount_cents": note.amount_cents,
        "settlement": note.settlement,
        "reason": note.reason,
    }


def _payment(payment: InvoicePayment) -> dict[str, Any]:
    return {
        "id": payment.id,
        "object": "organization.invoice.payment",
        "kind": payment.kind,
        "at": _unix(payment.at),
        "amount_cents": payment.amount_cents,
    }


def _unix(moment: datetime) -> int:
    return int(moment.timestamp())


def _drawn(invoice: InvoiceView) -> bytes:
    from billing.invoices.rendering import render  # with what only those need who ask for a document

    return render(invoice)
