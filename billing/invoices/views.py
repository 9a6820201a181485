"""Defines the view of an invoice that JSON, PDF and the command line show, for drafts too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from billing.invoices.lines import Line
from billing.invoices.models import CreditNote, Invoice, InvoiceLine, InvoicePayment


@dataclass(frozen=True, slots=True)
class InvoiceView:
    """A final invoice, or a draft, which has neither id nor number."""

    id: str | None
    number: int | None
    tenant_id: str
    month: date
    issued_at: datetime
    due_at: datetime
    total: int
    """Micro-USD."""
    total_cents: int
    carried_out: int
    seller: dict[str, str]
    customer: dict[str, str]
    lines: tuple[Line, ...]
    notes: tuple[CreditNote, ...] = ()
    payments: tuple[InvoicePayment, ...] = ()
    minimum_cents: int = 0
    """The minimum charge when it was made."""

    @property
    def name(self) -> str:
        return "Preview" if self.number is None else invoice_name(self.number)

    @property
    def due_cents(self) -> int:
        """Cents still to be paid."""
        return due(self.total_cents, self.notes, self.payments)

    @property
    def paid_at(self) -> datetime | None:
        """When the last payment or note settled it; None while something is due, and if nothing ever was."""
        if self.status != "paid":
            return None
        settled = [payment.at for payment in self.payments if payment.kind == "payment"]
        settled += [note.issued_at for note in self.notes if note.settlement == "due"]
        return max(settled, default=None)

    @property
    def status(self) -> str:
        if self.number is None:
            return "draft"
        return "paid" if self.due_cents <= 0 else "open"


def due(total_cents: int, notes: Sequence[CreditNote], payments: Sequence[InvoicePayment]) -> int:
    """Returns the cents still owed: the total less `due` notes, less payments. Neither a note that returns a
    payment nor its refund changes this.
    """
    lowered = sum(note.amount_cents for note in notes if note.settlement == "due")
    paid = sum(payment.amount_cents for payment in payments if payment.kind == "payment")
    return total_cents - lowered - paid


def invoice_name(number: int) -> str:
    return f"INV-{number:06}"


def note_name(number: int) -> str:
    return f"CN-{number:06}"


def dollars(micros: int) -> str:
    """Returns the amount with all six decimals, as 12.345678."""
    sign, micros = ("-" if micros < 0 else ""), abs(micros)
    return f"{sign}{micros // 10**6:,}.{micros % 10**6:06}"


def cents(amount: int) -> str:
    sign, amount = ("-" if amount < 0 else ""), abs(amount)
    return f"{sign}{amount // 100:,}.{amount % 100:02}"


def line_view(row: InvoiceLine) -> Line:
    return Line(row.kind, row.month, row.description, row.amount, row.details)  # type: ignore[arg-type]


def invoice_view(
    row: Invoice,
    lines: Sequence[InvoiceLine],
    notes: Sequence[CreditNote] = (),
    payments: Sequence[InvoicePayment] = (),
) -> InvoiceView:
    return InvoiceView(
        row.id,
        row.number,
        row.tenant_id,
        row.month,
        row.issued_at,
        row.due_at,
        row.total,
        row.total_cents,
        row.carried_out,
        row.seller,
        row.customer,
        tuple(line_view(line) for line in lines if line.invoice_id == row.id),
        tuple(note for note in notes if note.invoice_id == row.id),
        tuple(payment for payment in payments if payment.invoice_id == row.id),
        row.minimum_cents,
    )


def line_details(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line.details.items() if value not in ("", None)}
