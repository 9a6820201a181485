"""Gathers the invoices pages: the list, one invoice with its line items, a preview, a verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from admin import formatting
from admin.badge import Badge
from admin.invoices.lines import LineGroup, exact, groups_of, rounded
from billing.invoices.service import InvoiceService
from billing.invoices.verification import Finding, InvoiceVerification
from billing.invoices.views import InvoiceView, note_name
from billing.months import month_of
from billing.rates import MICRO_USD_PER_CENT

PAGE = 24
_SETTLEMENTS = {"due": "Amount due reduced", "credit": "Credited to your balance", "refund": "Refunded"}


@dataclass(frozen=True)
class Row:
    """An invoice of the list."""

    id: str
    name: str
    month: str
    state: Badge
    issued_at: datetime
    due_at: datetime
    total: str
    due: str | None
    """None: nothing is left to pay."""


@dataclass(frozen=True)
class InvoiceList:
    rows: list[Row]
    next_after: str | None


@dataclass(frozen=True)
class Sums:
    """From the sum of the lines to what is left to pay."""

    subtotal: str
    exact: str
    """The subtotal with all six decimals."""
    total: str
    carried: str | None
    corrections: list[tuple[str, datetime, str]]
    """(what, when, amount) of notes and payments."""
    due: str


@dataclass(frozen=True)
class Shown:
    """One invoice, or the preview of one."""

    view: InvoiceView
    month: str
    state: Badge
    lines: list[LineGroup]
    late: list[LineGroup]
    """For months before."""
    sums: Sums
    customer: list[str]
    seller: list[str]

    @property
    def is_final(self) -> bool:
        return self.view.number is not None

    @property
    def month_id(self) -> str:
        return f"{self.view.month:%Y-%m}"


@dataclass(frozen=True)
class Checked:
    """What was found when an invoice was made again from the ledger's rows."""

    name: str
    month: str
    findings: list[Finding]


class InvoicesPage:
    """Gathers the pages."""

    def __init__(self, invoices: InvoiceService, verification: InvoiceVerification) -> None:
        self._invoices = invoices
        self._verification = verification

    async def shown(self, tenant_id: str, after: str | None) -> InvoiceList:
        """Raises DatabaseUnavailable."""
        found = await self._invoices.list(tenant_id, after=after, limit=PAGE + 1, with_lines=False)
        rows = [row_of(view) for view in found[:PAGE]]
        return InvoiceList(rows, rows[-1].id if len(found) > PAGE else None)

    async def one(self, tenant_id: str, invoice_id: str) -> Shown:
        """Raises InvoiceNotFound, DatabaseUnavailable."""
        return shown(await self._invoices.find(tenant_id, invoice_id))

    async def preview(self, tenant_id: str, month: date | None) -> Shown:
        """Of this month unless told otherwise. Raises InvalidBillingMonth, DatabaseUnavailable."""
        now = datetime.now(UTC)
        return shown(await self._invoices.preview(tenant_id, month or month_of(now), now=now))

    async def check(self, tenant_id: str, invoice_id: str) -> Checked:
        """Prices the rows behind the invoice anew. Raises InvoiceNotFound, DatabaseUnavailable."""
        view = await self._invoices.find(tenant_id, invoice_id)
        findings = await self._verification.verify_invoice(tenant_id, invoice_id)
        return Checked(view.name, month_words(view.month), findings)


def row_of(view: InvoiceView) -> Row:
    due = view.due_cents
    return Row(
        id=view.id or "",
        name=view.name,
        month=month_words(view.month),
        state=state_of(view),
        issued_at=view.issued_at,
        due_at=view.due_at,
        total=cents(view.total_cents),
        due=cents(due) if due > 0 else None,
    )


def shown(view: InvoiceView) -> Shown:
    return Shown(
        view=view,
        month=month_words(view.month),
        state=state_of(view),
        lines=groups_of(line for line in view.lines if line.month >= view.month),
        late=groups_of(line for line in view.lines if line.month < view.month),
        sums=_sums(view),
        customer=_party(view.customer),
        seller=_party(view.seller),
    )


def state_of(view: InvoiceView) -> Badge:
    if view.number is None:
        return Badge("Preview", "busy")
    if view.status == "paid":
        return Badge("Paid" if view.total_cents else "No payment due", "good")
    return Badge("Overdue", "bad") if view.due_at < datetime.now(UTC) else Badge("Open", "warn")


def month_words(month: date) -> str:
    return f"{month:%B %Y}"


def cents(amount: int) -> str:
    return formatting.usd(amount * MICRO_USD_PER_CENT)


def _sums(view: InvoiceView) -> Sums:
    corrections = [
        (f"{note_name(note.number)}: {_SETTLEMENTS.get(note.settlement, '')}. {note.reason}", note.issued_at,
         cents(-note.amount_cents))
        for note in view.notes
    ]  # fmt: skip
    corrections += [
        ("Payment" if one.kind == "payment" else "Refund", one.at, cents(-one.amount_cents))
        for one in view.payments
    ]
    return Sums(
        subtotal=rounded(view.total),
        exact=exact(view.total),
        total=cents(view.total_cents),
        carried=formatting.usd(view.carried_out) if view.carried_out else None,
        corrections=sorted(corrections, key=lambda one: one[1]),
        due=cents(max(0, view.due_cents)),
    )


def _party(facts: Mapping[str, str]) -> list[str]:
    tax = facts.get("tax_id", "")
    written = [facts.get("name", ""), *facts.get("address", "").split("\n"), facts.get("country", "")]
    return [line for line in (*written, facts.get("email", ""), f"Tax ID {tax}" if tax else "") if line]
