"""Defines the payment provider's interface: the requests billing makes and the views it gets back.

Every call raises `ProviderUnavailable` or `ProviderRefused`. Amounts are whole cents; meter values are
micro-USD. `key` is an idempotency key: a request repeated within a day takes effect once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

LEAST_CHARGE = 50
"""The smallest amount in cents that a card can be charged."""
InvoiceStatus = Literal["draft", "open", "uncollectible", "void", "paid"]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Our objects in the provider's catalogue: a meter of micro-USD, and its price."""

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
    """The address at which the customer pays it."""
    total: int = 0
    """Cents before the customer's balance at the provider and before credit notes."""
    credited: int = 0
    """Cents of credit notes, before and after payment."""
    invoice_id: str | None = None
    """The id of our invoice that it stands for, if any."""

    @property
    def failed(self) -> bool:
        """Whether a payment attempt failed and the rest is large enough to be charged."""
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
    """The metadata of the payment."""


@dataclass(frozen=True, slots=True)
class CustomerDetails:
    """The billing details on invoices. Empty means unknown."""

    name: str
    email: str = ""
    address: str = ""
    """Lines of text."""
    country: str = ""
    tax_id: str = ""


class DocumentGateway(Protocol):
    """Creates our invoices and credit notes at the provider, in steps that may each be repeated."""

    async def find_invoice(self, customer_id: str, invoice_id: str) -> InvoiceView | None:
        """Returns the provider's invoice for ours."""
        ...

    async def metered_invoices(self, customer_id: str, start: datetime, end: datetime) -> list[InvoiceView]:
        """Returns the provider's own invoices with an amount, for usage within [start, end]."""

    async def create_invoice(
        self, customer_id: str, tenant_id: str, invoice_id: str, name: str
    ) -> InvoiceView:
        """Creates an empty draft."""
        ...

    async def add_lines(
        self, provider_id: str, lines: Sequence[tuple[str, int]], invoice_id: str
    ) -> InvoiceView:
        """Adds lines of descriptions and cents to a draft, all or none."""
        ...

    async def finalize(self, provider_id: str, invoice_id: str) -> InvoiceView:
        """Finalizes the invoice, which charges the customer's card."""
        ...

    async def find_credit_note(self, provider_id: str, note_id: str) -> str | None: ...

    async def create_credit_note(
        self, provider_id: str, note_id: str, memo: str, cents: int, refunded: int
    ) -> str:
        """Credits `cents` of an invoice; `refunded` of them were paid and are paid back."""
        ...


class PaymentGateway(Protocol):
    @property
    def documents(self) -> DocumentGateway: ...

    @property
    def live(self) -> bool:
        """Whether real money moves, which it does not with a test key."""
        ...

    async def catalogue(self) -> Catalogue:
        """Returns the meter and its price, created if missing."""
        ...

    async def find_customer(self, tenant_id: str) -> str | None: ...

    async def create_customer(self, tenant_id: str, name: str, email: str) -> str: ...

    async def update_customer(self, customer_id: str, details: CustomerDetails) -> None: ...

    async def find_subscription(self, customer_id: str) -> SubscriptionView | None:
        """Returns the subscription that is not cancelled."""
        ...

    async def create_subscription(
        self, tenant_id: str, customer_id: str, price_id: str, anchor: datetime, key: str
    ) -> SubscriptionView:
        """Creates a subscription whose first period ends at `anchor`."""
        ...

    async def subscription_status(self, subscription_id: str) -> str: ...

    async def cancel_subscription(self, subscription_id: str) -> None: ...

    async def meter(
        self, customer_id: str, value: int, timestamp: datetime, identifier: str
    ) -> Literal["taken", "known"]:
        """Sends a meter event. Returns "known" if the provider had the identifier within the last day."""
        ...

    async def metered(self, customer_id: str, start: datetime, end: datetime) -> int:
        """Returns the sum metered with times in [start, end), whole minutes; it lags behind."""
        ...

    async def metered_by_hour(self, customer_id: str, start: datetime, end: datetime) -> dict[datetime, int]:
        """Returns the sums by hour with any value; `start` and `end` are whole hours."""
        ...

    async def invoice(self, invoice_id: str) -> InvoiceView: ...

    async def open_invoices(self, customer_id: str) -> list[InvoiceView]: ...

    async def checkout(
        self, customer_id: str, cents: int, metadata: Mapping[str, str], return_url: str, key: str
    ) -> tuple[str, str]:
        """Creates a payment page for an amount; returns its id and address."""
        ...

    async def checkout_session(self, session_id: str) -> CheckoutView: ...

    async def portal(self, customer_id: str, return_url: str) -> str:
        """Returns the address where the customer manages cards and sees charges."""
        ...

    async def refund(self, payment_id: str, cents: int, key: str) -> str:
        """Refunds a payment; returns the refund's id."""
        ...

    async def refund_view(self, refund_id: str) -> RefundView: ...

    async def close(self) -> None: ...
