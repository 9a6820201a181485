"""Builds an invoice's JSON for the API, and its PDF.

Amounts are integers, in micro-USD or cents as their names say. One PDF is drawn at a time.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from typing import Literal, NotRequired, TypedDict

from billing.invoices.lines import Line, LineKind
from billing.invoices.models import CreditNote, InvoicePayment
from billing.invoices.views import InvoiceView, line_details, note_name
from billing.months import begin, following


class InvoiceLineObject(TypedDict):
    """A line of an invoice."""

    object: Literal["organization.invoice.line"]
    kind: LineKind
    month: str
    """The month of the usage, as `2026-11`."""
    late: bool
    """Whether it is usage of an earlier month that was recorded late."""
    description: str
    amount_micro_usd: int
    item: NotRequired[str]
    """What was used: `input`, `cached_input`, `output`, `surcharge`, `share`, `byte_days` or `jobs`."""
    model: NotRequired[str]
    service_tier: NotRequired[str]
    quantity: NotRequired[int]


class CreditNoteObject(TypedDict):
    """A correction of an invoice."""

    id: str
    object: Literal["organization.credit_note"]
    number: str
    issued_at: int
    """Unix seconds."""
    amount_cents: int
    settlement: str
    """`due`: it lowers what is owed. Otherwise it was paid back or put into the balance."""
    reason: str


class InvoicePaymentObject(TypedDict):
    """A payment of an invoice, or a refund."""

    id: str
    object: Literal["organization.invoice.payment"]
    kind: str
    """`payment` or `refund`."""
    at: int
    """Unix seconds."""
    amount_cents: int


class InvoiceObject(TypedDict):
    """An invoice of a month, or a preview of one."""

    id: str | None
    """Null for a preview."""
    object: Literal["organization.invoice"]
    number: str | None
    """Null for a preview."""
    status: str
    """`draft`, `open` or `paid`."""
    month: str
    """As `2026-11`."""
    period_start: int
    """Unix seconds."""
    period_end: int
    """Unix seconds, exclusive."""
    issued_at: int | None
    """Unix seconds; null for a preview."""
    due_at: int | None
    """Unix seconds; null for a preview."""
    currency: Literal["usd"]
    total_micro_usd: int
    total_cents: int
    """The total in whole cents: what is charged."""
    carried_to_next_micro_usd: int
    """What rounding added or left out, and the next invoice begins with."""
    due_cents: int
    """What is still to be paid."""
    seller: dict[str, str]
    customer: dict[str, str]
    credit_notes: list[CreditNoteObject]
    payments: list[InvoicePaymentObject]
    lines: NotRequired[list[InvoiceLineObject]]
    """Not in lists."""


# One at a time, because drawing takes processor time that requests on models wait for.
_drawing = ThreadPoolExecutor(1, thread_name_prefix="invoice-pdf")


async def invoice_pdf(invoice: InvoiceView) -> bytes:
    """Returns the PDF."""
    return await asyncio.get_running_loop().run_in_executor(_drawing, _drawn, invoice)


def file_name(invoice: InvoiceView) -> str:
    """Returns the document's file name without its suffix."""
    return invoice.name if invoice.number else f"preview-{invoice.month:%Y-%m}"


def invoice_object(invoice: InvoiceView, *, with_lines: bool = True) -> InvoiceObject:
    shown: InvoiceObject = {
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


def _line(line: Line, month: date) -> InvoiceLineObject:
    return {
        "object": "organization.invoice.line",
        "kind": line.kind,
        "month": f"{line.month:%Y-%m}",
        "late": line.month < month,
        "description": line.description,
        "amount_micro_usd": line.amount,
        **line_details(line),  # type: ignore[typeddict-item]  # a dict of some of the optional ones
    }


def _note(note: CreditNote) -> CreditNoteObject:
    return {
        "id": note.id,
        "object": "organization.credit_note",
        "number": note_name(note.number),
        "issued_at": _unix(note.issued_at),
        "amount_cents": note.amount_cents,
        "settlement": note.settlement,
        "reason": note.reason,
    }


def _payment(payment: InvoicePayment) -> InvoicePaymentObject:
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
    from billing.invoices.rendering import render  # large; only a process that draws needs it

    return render(invoice)
