"""Verifies that invoices equal the ledger: prices every row again and compares line by line.

Invoices are made from the ledger's sums; here every row is priced again, by its counts and the prices it
carries. A month's rows must add up to what all invoices together have of it, plus what was recorded since,
which the next invoice will have. So a past invoice computed again gives the same integers, and a row that was
lost, changed or counted twice is found by its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from billing.earnings import EarningsBook
from billing.invoices.drafting import Books
from billing.invoices.errors import InvoiceNotFound
from billing.invoices.ledger import MonthLedger
from billing.invoices.lines import Key, LedgerLine, added, in_cents, ledger_line
from billing.invoices.models import CreditEntry, Invoice, InvoiceLine
from billing.invoices.repository import (
    LEDGER_KINDS,
    AccountRepository,
    InvoiceRepository,
    MonthRepository,
)
from billing.invoices.views import invoice_name
from billing.months import following, span
from db.session import EVERY_TENANT, Database, ReadSession
from tenants.repository import TenantDirectory

Sums = dict[Key, tuple[int, int]]
"""Quantity and amount by key."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A number on an invoice that is wrong."""

    tenant_id: str
    invoice: str
    """The invoice's number, or the month if several invoices bill it."""
    what: str
    expected: int
    found: int


class InvoiceVerification:
    """Verifies invoices, for the operator and for reconciliations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def verify(self, tenant_id: str | None = None) -> list[Finding]:
        """Returns what is wrong with a tenant's invoices, or with all invoices and their numbers. Raises
        DatabaseUnavailable.
        """
        if tenant_id is not None:
            return await self._verify(tenant_id)
        async with self._database.read(EVERY_TENANT) as session:
            tenants = [tenant.id for tenant in await TenantDirectory(session).tenants()]
            first, last, count = await MonthRepository(session).numbers()
        findings = [finding for one in tenants for finding in await self._verify(one)]
        if count and (first, last) != (1, count):
            findings.append(Finding("", invoice_name(last), "numbers without gaps, from 1", count, last))
        return findings

    async def verify_invoice(self, tenant_id: str, invoice_id: str) -> list[Finding]:
        """Returns what is wrong with one invoice: its arithmetic, and the rows of every month that it bills.
        Raises InvoiceNotFound, DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            invoice = await InvoiceRepository(session, tenant_id).find(invoice_id)
        if invoice is None:
            raise InvoiceNotFound(invoice_id)
        return await self._verify(tenant_id, invoice)

    async def late(self, tenant_id: str) -> dict[date, int]:
        """Returns micro-USD of invoiced months that the next invoice will have, by month."""
        async with self._database.read(tenant_id) as session:
            latest = await InvoiceRepository(session, tenant_id).latest()
            books = Books(session, tenant_id)
            months = await books.unsettled(following(latest.month)) if latest is not None else []
            found = [await books.of(month) for month in months]
        return {
            one.month: sum(line.amount for line in one.ledger) - sum(line.amount for line in one.invoiced)
            for one in found
        }

    async def _verify(self, tenant_id: str, only: Invoice | None = None) -> list[Finding]:
        """Verifies all of a tenant's invoices, or one. For one, the previous invoice and other invoices of
        its months are still read.
        """
        async with self._database.read(tenant_id) as session:
            repository = InvoiceRepository(session, tenant_id)
            invoices = await repository.page(limit=10_000, newest_first=False)
            lines = await repository.lines([invoice.id for invoice in invoices])
            entries = await AccountRepository(session, tenant_id).credits(limit=1_000_000)
            findings = _sums(invoices, lines) + _balances(invoices, lines, entries)
            if only is not None:
                findings = [one for one in findings if one.invoice == invoice_name(only.number)]
            invoiced = {
                line.month
                for line in lines
                if line.kind in LEDGER_KINDS and (only is None or line.invoice_id == only.id)
            }
            for month in sorted(invoiced):
                findings += await _month(
                    session, tenant_id, month, lines, await self._earned(tenant_id, month)
                )
        return findings

    async def _earned(self, tenant_id: str, month: date) -> list[LedgerLine]:
        """Returns what the tenant earned in a month, priced again from other tenants' rows."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await EarningsBook(session).priced_again(tenant_id, *span(month))
        return [LedgerLine("earnings", "share", model, "", 0, -amount) for model, amount in found.items()]


def _sums(invoices: Sequence[Invoice], lines: Sequence[InvoiceLine]) -> list[Finding]:
    """Checks each invoice's arithmetic, and what it carries to the next."""
    findings, carried = [], 0
    for invoice in sorted(invoices, key=lambda one: one.month):
        own = [line for line in lines if line.invoice_id == invoice.id]
        total = sum(line.amount for line in own)
        cents, rest = in_cents(total, invoice.minimum_cents)
        brought = sum(line.amount for line in own if line.kind == "carried")
        for what, expected, found in (
            ("total", total, invoice.total),
            ("total in cents", cents, invoice.total_cents),
            ("carried to the next invoice", rest, invoice.carried_out),
            ("carried from the previous invoice", carried, brought),
        ):
            if expected != found:
                findings.append(
                    Finding(invoice.tenant_id, invoice_name(invoice.number), what, expected, found)
                )
        carried = invoice.carried_out
    return findings


def _balances(
    invoices: Sequence[Invoice], lines: Sequence[InvoiceLine], entries: Sequence[CreditEntry]
) -> list[Finding]:
    """Checks that what invoices took from or added to the balance is there once."""
    findings = []
    for invoice in invoices:
        for line_kind, kind in (("credit", "applied"), ("kept", "kept")):
            expected = sum(
                line.amount for line in lines if line.invoice_id == invoice.id and line.kind == line_kind
            )
            found = sum(
                entry.amount for entry in entries if entry.invoice_id == invoice.id and entry.kind == kind
            )
            if expected != found:
                name = invoice_name(invoice.number)
                findings.append(Finding(invoice.tenant_id, name, f"balance: {kind}", expected, found))
    return findings


async def _month(
    session: ReadSession,
    tenant_id: str,
    month: date,
    lines: Sequence[InvoiceLine],
    earned: Sequence[LedgerLine],
) -> list[Finding]:
    """Compares the lines of all invoices for a month with the month's rows. `earned`: what the tenant earned
    in the month, from the rows of the tenants that used its adapters.
    """
    invoiced = added(
        ledger_line(line.kind, line.details, line.amount)
        for line in lines
        if line.month == month and line.kind in LEDGER_KINDS
    )
    ledger = added(await MonthLedger(session, tenant_id).lines(month))
    rows = added([*await _rows(session, tenant_id, month), *_charged(ledger), *earned])
    findings = []
    for key in sorted(invoiced.keys() | ledger.keys() | rows.keys()):
        name = " ".join(part for part in key if part)
        repriced, summed, billed = (_amount(one, key) for one in (rows, ledger, invoiced))
        if repriced != summed:
            findings.append(Finding(tenant_id, f"{month:%Y-%m}", f"sums of {name}", repriced, summed))
        sign = -1 if key[0] == "earnings" else 1
        if sign * repriced < sign * billed:
            # More can be recorded late, but never less: a reversal counts at its own time.
            findings.append(Finding(tenant_id, f"{month:%Y-%m}", f"invoiced of {name}", repriced, billed))
    return findings


async def _rows(session: ReadSession, tenant_id: str, month: date) -> list[LedgerLine]:
    """Returns lines for the month's requests, from the ledger's rows."""
    repository = InvoiceRepository(session, tenant_id)
    rows = await repository.repriced(*span(month))
    return [
        LedgerLine("usage", item, row.model, row.service_tier, quantity, amount)
        for row in rows
        for item, quantity, amount in (
            (
                "input",
                row.prompt_tokens - row.cached_tokens,
                row.cost - row.cached_cost - row.output_cost - row.surcharge,
            ),
            ("cached_input", row.cached_tokens, row.cached_cost),
            ("output", row.completion_tokens, row.output_cost),
            ("surcharge", row.prompt_tokens + row.completion_tokens, row.surcharge),
        )
        if quantity or amount
    ]


def _charged(ledger: Sums) -> list[LedgerLine]:
    """Returns lines for charges, which have no sums: the ledger reads their rows already."""
    return [
        LedgerLine(key[0], *key[1:], quantity, amount)  # type: ignore[arg-type]
        for key, (quantity, amount) in ledger.items()
        if key[0] not in ("usage", "earnings")
    ]


def _amount(sums: Sums, key: Key) -> int:
    return sums.get(key, (0, 0))[1]
