"""What can be wrong with a question about invoices, or with a correction. Errors carry data, not HTTP."""

from __future__ import annotations

from datetime import date

from billing.errors import InvalidBillingMonth


class MonthSettled(InvalidBillingMonth):
    """The month gets no invoice any more: what it came to since is for later ones."""

    def __init__(self, month: date) -> None:
        super().__init__(f"month {month:%Y-%m} has no invoice: what it came to is on later ones")
        self.month = month


class InvoiceNotFound(LookupError):
    """The tenant has no such invoice."""

    def __init__(self, invoice_id: str) -> None:
        super().__init__(f"No invoice '{invoice_id[:100]}'.")
        self.invoice_id = invoice_id


class BalanceEmpty(Exception):
    """Paying in advance from an empty balance would refuse every request."""

    def __init__(self, amount: int) -> None:
        super().__init__(
            f"The balance is {amount} micro-USD: in prepaid mode every request would be refused. "
            "Top it up first, or send 'confirm': true."
        )
        self.amount = amount


class ModeNotAllowed(Exception):
    """A tenant asks to be invoiced again, and may not decide that itself. The message says why."""


class CreditNotAllowed(ValueError):
    """More than can be taken back, or paid out. The message begins with the field."""

    def __init__(self, field: str, asked: int, most: int, unit: str) -> None:
        super().__init__(f"{field}: at most {most} {unit}, not {asked}")
        self.field, self.asked, self.most = field, asked, most
