"""Defines the errors of invoices and corrections. They carry data, not HTTP status codes."""

from __future__ import annotations

from datetime import date

from billing.errors import InvalidBillingMonth


class MonthSettled(InvalidBillingMonth):
    """The month gets no invoice any more: its later usage is on later invoices."""

    def __init__(self, month: date) -> None:
        super().__init__(f"month {month:%Y-%m} gets no invoice any more: its usage is on later invoices")
        self.month = month


class InvoiceNotFound(LookupError):
    """The tenant has no such invoice."""

    def __init__(self, invoice_id: str) -> None:
        super().__init__(f"No invoice '{invoice_id[:100]}'.")
        self.invoice_id = invoice_id


class BalanceEmpty(Exception):
    """Prepaid mode with an empty balance would refuse every request."""

    def __init__(self, amount: int) -> None:
        super().__init__(
            f"The balance is {amount} micro-USD: in prepaid mode every request would be refused. "
            "Top it up first, or send 'confirm': true."
        )
        self.amount = amount


class ModeNotAllowed(Exception):
    """The tenant may not switch to this mode itself. The message says why."""


class CreditNotAllowed(ValueError):
    """The amount is more than can be taken back or paid out. The message begins with the field."""

    def __init__(self, field: str, requested: int, most: int, unit: str) -> None:
        super().__init__(f"{field}: at most {most} {unit}, not {requested}")
        self.field, self.requested, self.most = field, requested, most
