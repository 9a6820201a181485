"""Invoices as they are shown: what is still due, and amounts as people read them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from billing.invoices.views import InvoiceView, cents, dollars

NOW = datetime(2026, 12, 2, tzinfo=UTC)


def view(total_cents: int, notes: list[tuple[str, int]], payments: list[tuple[str, int]]) -> InvoiceView:
    given: Any = [SimpleNamespace(settlement=settlement, amount_cents=amount) for settlement, amount in notes]
    paid: Any = [SimpleNamespace(kind=kind, amount_cents=amount) for kind, amount in payments]
    total = total_cents * 10_000
    return InvoiceView(
        "inv_1", 7, "tnt_1", date(2026, 11, 1), NOW, NOW, total, total_cents, 0, {}, {}, (), given, paid
    )


@pytest.mark.parametrize(
    ("notes", "payments", "due", "status"),
    [
        ([], [], 1000, "open"),
        ([("due", 300)], [], 700, "open"),
        ([("due", 300)], [("payment", 700)], 0, "paid"),
        ([], [("payment", 999)], 1, "open"),
        ([], [("payment", 400), ("payment", 600)], 0, "paid"),
        ([("credit", 300)], [("payment", 1000)], 0, "paid"),
        ([("refund", 300)], [("payment", 1000), ("refund", -300)], 0, "paid"),
        ([("due", 100), ("credit", 50)], [("payment", 500)], 400, "open"),
    ],
)
def test_what_is_due_is_the_total_less_notes_that_lower_it_less_payments(
    notes: list[tuple[str, int]], payments: list[tuple[str, int]], due: int, status: str
) -> None:
    """What a note gives back of a payment was owed and paid."""
    shown = view(1000, notes, payments)
    assert (shown.due_cents, shown.status) == (due, status)


def test_a_draft_is_neither_open_nor_paid() -> None:
    shown = view(0, [], [])
    draft = InvoiceView(
        None, None, "tnt_1", shown.month, NOW, NOW, 0, 0, 0, {}, {}, shown.lines, shown.notes, shown.payments
    )
    assert (draft.status, draft.name, shown.status, shown.name) == ("draft", "Preview", "paid", "INV-000007")


@pytest.mark.parametrize(
    ("micros", "written"),
    [
        (0, "0.000000"),
        (1, "0.000001"),
        (-1, "-0.000001"),
        (12_345_678, "12.345678"),
        (1_000_000_000_007, "1,000,000.000007"),
        (-2_500_000, "-2.500000"),
    ],
)
def test_micro_dollars_have_six_places(micros: int, written: str) -> None:
    assert dollars(micros) == written


@pytest.mark.parametrize(
    ("amount", "written"), [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (123_456, "1,234.56"), (-100, "-1.00")]
)
def test_cents_have_two_places(amount: int, written: str) -> None:
    assert cents(amount) == written
