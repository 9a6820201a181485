"""What a payment provider is asked, and how it answers: the only words billing has for it.

Every call raises `ProviderUnavailable` or `ProviderRefused`. Amounts are whole cents, but a meter's, which
are micro-USD. `key` is what makes asking twice within a day the same as asking once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

LEAST_CHARGE = 50
"""Cents that a card can be charged at least."""
InvoiceStatus = Literal["draft", "open", "uncollectible", "void", "paid"]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the account at the provider has for us: a meter of micro-USD, and its price."""

    meter_id: str
    event_name: str
    price_id: str


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    id: str
    customer_id: str
    status: str
    price_id: str = ""


@dataclass(frozen=True, slots=True)
class InvoiceView:
    id: str
    customer_id: str
    status: InvoiceStatus
    attempt_count: int
    amount_due: int
    amount_paid: int
    amount_remaining: int
    period_start: datetime
    period_end: datetime
    url: str | None
    """Where the customer pays it."""
    total: int = 0
    """Before what is on the customer's balance there, and before credit notes."""
    credited: int = 0
    """By credit notes, before and after it was paid."""
    invoice_id: str | None = None
    """Ours that it stands for, if it does."""

    @property
    def failed(self) -> bool:
        """Its payment was tried in vain, and more is still owed than is too little to be paid."""
        return (
            self.status in ("open", "uncollectible")
            and self.attempt_count > 0
            and self.amount_remaining >= LEAST_CHARGE
        )


@dataclass(frozen=True, slots=True)
class CheckoutView:
    id: str
    customer_id: str
    paid: bool
    amount: int
    payment_id: str | None
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RefundView:
    id: str
    amount: int
    succeeded: bool
    payment_id: str | None
    metadata: Mapping[str, str]
    """The payment's."""


@dataclass(frozen=True, slots=True)
class CustomerDetails:
    """What invoices name. Empty: not known."""

    name: str
    email: str = ""
    address: str = ""
    """Lines of text."""
    country: str = ""
    tax_id: str = ""


class DocumentGateway(Protocol):
    """Invoices and credit notes of ours, at the provider. Each is made in steps, any of which may be asked
    for again.
    """

    async def find_invoice(self, customer_id: str, invoice_id: str) -> InvoiceView | None:
        """The one that stands for ours."""
        ...

    async def metered_invoices(self, customer_id: str, start: datetime, end: datetime) -> list[InvoiceView]:
        """Those of something that are none of ours, for what was used within [start, end]."""

    async def create_invoice(
        self, customer_id: str, tenant_id: str, invoice_id: str, name: str
    ) -> InvoiceView:
        """A draft with nothing on it."""
        ...

    async def add_lines(
        self, provider_id: str, lines: Sequence[tuple[str, int]], invoice_id: str
    ) -> InvoiceView:
        """What is on it: descriptions and cents, all at once or none."""
        ...

    async def finalize(self, provider_id: str, invoice_id: str) -> InvoiceView:
        """Have it paid: final, with the customer's card charged."""
        ...

    async def find_credit_note(self, provider_id: str, note_id: str) -> str | None: ...

    async def create_credit_note(
        self, provider_id: str, note_id: str, memo: str, cents: int, refunded: int
    ) -> str:
        """Take back `cents` of an invoice; `refunded` of them were paid, and go back where they came from."""
        ...


class PaymentGateway(Protocol):
    @property
    def documents(self) -> DocumentGateway: ...

    @property
    def live(self) -> bool:
        """Whether money moves: not with a key for tests."""
        ...

    async def catalogue(self) -> Catalogue:
        """The meter and its price, made if they are not there."""
        ...

    async def find_customer(self, tenant_id: str) -> str | None: ...

    async def create_customer(self, tenant_id: str, name: str, email: str) -> str: ...

    async def update_customer(self, customer_id: str, details: CustomerDetails) -> None: ...

    async def find_subscription(self, customer_id: str) -> SubscriptionView | None:
        """The one that is not cancelled."""
        ...

    async def create_subscription(
        self, tenant_id: str, customer_id: str, price_id: str, anchor: datetime, key: str
    ) -> SubscriptionView:
        """`anchor`: when its first period ends."""
        ...

    async def subscription_status(self, subscription_id: str) -> str: ...

    async def cancel_subscription(self, subscription_id: str) -> None: ...

    async def meter(
        self, customer_id: str, value: int, timestamp: datetime, identifier: str
    ) -> Literal["taken", "known"]:
        """`known`: the provider had an event with this identifier in the last day."""
        ...

    async def metered(self, customer_id: str, start: datetime, end: datetime) -> int:
        """The sum of what was metered with times in [start, end), whole minutes; it lags behind."""
        ...

    async def metered_by_hour(self, customer_id: str, start: datetime, end: datetime) -> dict[datetime, int]:
        """The same for every hour that has any, `start` and `end` being whole hours."""
        ...

    async def invoice(self, invoice_id: str) -> InvoiceView: ...

    async def open_invoices(self, customer_id: str) -> list[InvoiceView]: ...

    async def checkout(
        self, customer_id: str, cents: int, metadata: Mapping[str, str], return_url: str, key: str
    ) -> tuple[str, str]:
        """A page to pay an amount on: its id and address."""
        ...

    async def checkout_session(self, session_id: str) -> CheckoutView: ...

    async def portal(self, customer_id: str, return_url: str) -> str:
        """Where the customer keeps cards and sees what was charged."""
        ...

    async def refund(self, payment_id: str, cents: int, key: str) -> str:
        """Pay back what was paid; the refund's id."""
        ...

    async def refund_view(self, refund_id: str) -> RefundView: ...

    async def close(self) -> None: ...
