"""Talks to Stripe behind `billing.payments.gateway`: the only module that knows the SDK.

It translates the SDK's objects and errors into ours, and retries nothing: the caller knows whether a request
may be repeated and which idempotency key makes it the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, TypeVar

import stripe

from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import (
    Catalogue,
    CheckoutView,
    CustomerDetails,
    InvoiceView,
    RefundView,
    SubscriptionView,
)
from billing.payments.settings import StripeSettings
from billing.stripe_documents import StripeDocuments, id_of, invoice_view, plain

T = TypeVar("T")

SHOWN_AT = Decimal(0)
"""The price per micro-USD on the meter: zero. The meter only displays usage; invoices collect the money."""
_KNOWN = "An event already exists with identifier"
_PAGE = 100


class StripeGateway:
    """The client of one Stripe account. `close` it at the end."""

    def __init__(self, settings: StripeSettings) -> None:
        assert settings.api_key is not None
        key = settings.api_key.get_secret_value()
        self.live = re.match(r"[sr]k_live_", key) is not None
        self._event_name = settings.event_name
        self._price_key = f"{settings.event_name}_shown"
        self._http = stripe.HTTPXClient(timeout=settings.timeout)
        self._stripe = stripe.StripeClient(
            key,
            base_addresses={"api": settings.api_base, "meter_events": settings.api_base},
            http_client=self._http,
            max_network_retries=0,
        )
        self.documents = StripeDocuments(self._stripe.v1, _call, _all_pages)
        self._catalogue: Catalogue | None = None

    async def close(self) -> None:
        await self._http.close_async()

    # Catalogue ----------------------------------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        if self._catalogue is None:
            meter = await self._find_meter() or await self._create_meter()
            price = await self._find_price() or await self._create_price(meter)
            self._catalogue = Catalogue(meter, self._event_name, price)
        return self._catalogue

    async def _find_meter(self) -> str | None:
        meters = self._stripe.v1.billing.meters
        for meter in await _all_pages(meters.list_async({"status": "active", "limit": _PAGE})):
            if meter.event_name == self._event_name:
                return str(meter.id)
        return None

    async def _create_meter(self) -> str:
        made = await _call(
            self._stripe.v1.billing.meters.create_async(
                {
                    "display_name": "Usage in micro-USD",
                    "event_name": self._event_name,
                    "default_aggregation": {"formula": "sum"},
                    "customer_mapping": {"type": "by_id", "event_payload_key": "stripe_customer_id"},
                    "value_settings": {"event_payload_key": "value"},
                },
                {"idempotency_key": f"meter:{self._event_name}"},
            )
        )
        return str(made.id)

    async def _find_price(self) -> str | None:
        page = await _call(
            self._stripe.v1.prices.list_async({"lookup_keys": [self._price_key], "active": True})
        )
        return str(page.data[0].id) if page.data else None

    async def _create_price(self, meter_id: str) -> str:
        made = await _call(
            self._stripe.v1.prices.create_async(
                {
                    "currency": "usd",
                    "unit_amount_decimal": SHOWN_AT,
                    "lookup_key": self._price_key,
                    "recurring": {"interval": "month", "usage_type": "metered", "meter": meter_id},
                    "product_data": {"name": "Usage", "unit_label": "micro-USD"},
                },
                {"idempotency_key": f"price:{meter_id}"},
            )
        )
        return str(made.id)

    # Customers and subscriptions ----------------------------------------------------------------------------

    async def find_customer(self, tenant_id: str) -> str | None:
        query = f"metadata['tenant_id']:'{tenant_id}'"
        found = await _call(self._stripe.v1.customers.search_async({"query": query}))
        return str(found.data[0].id) if found.data else None

    async def create_customer(self, tenant_id: str, name: str, email: str) -> str:
        params: dict[str, Any] = {"name": name, "metadata": {"tenant_id": tenant_id}}
        if email:
            params["email"] = email
        options: Any = {"idempotency_key": f"customer:{tenant_id}"}
        made = await _call(self._stripe.v1.customers.create_async(params, options))  # type: ignore[arg-type]
        return str(made.id)

    async def update_customer(self, customer_id: str, details: CustomerDetails) -> None:
        first, _, rest = details.address.partition("\n")
        line2 = ", ".join(rest.splitlines())
        params: dict[str, Any] = {
            "name": details.name,
            "email": details.email,  # empty clears it at Stripe
            "address": {"line1": first, "line2": line2, "country": details.country}
            if first or details.country
            else "",
            # Printed on every invoice as it is; Stripe's own tax ids require the kind of the tax id.
            "invoice_settings": {
                "custom_fields": [{"name": "Tax ID", "value": details.tax_id}] if details.tax_id else ""
            },
        }
        await _call(self._stripe.v1.customers.update_async(customer_id, params))  # type: ignore[arg-type]

    async def find_subscription(self, customer_id: str) -> SubscriptionView | None:
        page = await _call(
            self._stripe.v1.subscriptions.list_async({"customer": customer_id, "limit": _PAGE})
        )
        for found in page.data:
            if found.status not in ("canceled", "incomplete_expired"):
                return _subscription(found, customer_id)
        return None

    async def create_subscription(
        self, tenant_id: str, customer_id: str, price_id: str, anchor: datetime, key: str
    ) -> SubscriptionView:
        made = await _call(
            self._stripe.v1.subscriptions.create_async(
                {
                    "customer": customer_id,
                    "items": [{"price": price_id}],
                    "billing_cycle_anchor": int(anchor.timestamp()),
                    "proration_behavior": "none",
                    "collection_method": "charge_automatically",
                    "metadata": {"tenant_id": tenant_id},
                },
                {"idempotency_key": key},
            )
        )
        return _subscription(made, customer_id)

    async def subscription_status(self, subscription_id: str) -> str:
        return str((await _call(self._stripe.v1.subscriptions.retrieve_async(subscription_id))).status)

    async def cancel_subscription(self, subscription_id: str) -> None:
        await _call(
            self._stripe.v1.subscriptions.cancel_async(
                subscription_id, {"invoice_now": False, "prorate": False}
            )
        )

    # Meter --------------------------------------------------------------------------------------------------

    async def meter(
        self, customer_id: str, value: int, timestamp: datetime, identifier: str
    ) -> Literal["taken", "known"]:
        try:
            await _call(
                self._stripe.v1.billing.meter_events.create_async(
                    {
                        "event_name": self._event_name,
                        "identifier": identifier,
                        "timestamp": int(timestamp.timestamp()),
                        "payload": {"stripe_customer_id": customer_id, "value": str(value)},
                    }
                )
            )
        except ProviderRefused as refused:
            # The error code differs between API versions; the message has not changed.
            if refused.code == "duplicate_meter_event" or _KNOWN in str(refused):
                return "known"
            raise
        return "taken"

    async def metered(self, customer_id: str, start: datetime, end: datetime) -> int:
        return sum((await self._summaries(customer_id, start, end, None)).values())

    async def metered_by_hour(self, customer_id: str, start: datetime, end: datetime) -> dict[datetime, int]:
        return await self._summaries(customer_id, start, end, "hour")

    async def _summaries(
        self, customer_id: str, start: datetime, end: datetime, window: str | None
    ) -> dict[datetime, int]:
        params: dict[str, Any] = {
            "customer": customer_id,
            "start_time": int(start.timestamp()),
            "end_time": int(end.timestamp()),
            "limit": _PAGE,
        }
        if window is not None:
            params["value_grouping_window"] = window
        summaries = self._stripe.v1.billing.meters.event_summaries
        meter = (await self.catalogue()).meter_id
        found = await _all_pages(summaries.list_async(meter, params))  # type: ignore[arg-type]
        # The value is a float: exact up to 2**53 micro-USD, nine billion dollars in one hour.
        return {datetime.fromtimestamp(one.start_time, UTC): int(one.aggregated_value) for one in found}

    # Invoices -----------------------------------------------------------------------------------------------

    async def invoice(self, invoice_id: str) -> InvoiceView:
        return invoice_view(await _call(self._stripe.v1.invoices.retrieve_async(invoice_id)))

    async def open_invoices(self, customer_id: str) -> list[InvoiceView]:
        found = await _all_pages(
            self._stripe.v1.invoices.list_async({"customer": customer_id, "status": "open", "limit": _PAGE})
        )
        return [invoice_view(one) for one in found]

    # Paying -------------------------------------------------------------------------------------------------

    async def checkout(
        self, customer_id: str, cents: int, metadata: Mapping[str, str], return_url: str, key: str
    ) -> tuple[str, str]:
        made = await _call(
            self._stripe.v1.checkout.sessions.create_async(
                {
                    "customer": customer_id,
                    "mode": "payment",
                    "line_items": [
                        {
                            "quantity": 1,
                            "price_data": {
                                "currency": "usd",
                                "unit_amount": cents,
                                "product_data": {"name": "Prepaid credit"},
                            },
                        }
                    ],
                    "metadata": dict(metadata),
                    "payment_intent_data": {"metadata": dict(metadata)},
                    "success_url": return_url,
                    "cancel_url": return_url,
                },
                {"idempotency_key": key},
            )
        )
        return str(made.id), str(made.url)

    async def checkout_session(self, session_id: str) -> CheckoutView:
        found = await _call(self._stripe.v1.checkout.sessions.retrieve_async(session_id))
        return CheckoutView(
            str(found.id),
            id_of(found.customer) or "",
            found.payment_status == "paid",
            int(found.amount_total or 0),
            id_of(found.payment_intent),
            plain(found.metadata),
        )

    async def portal(self, customer_id: str, return_url: str) -> str:
        made = await _call(
            self._stripe.v1.billing_portal.sessions.create_async(
                {"customer": customer_id, "return_url": return_url}
            )
        )
        return str(made.url)

    async def refund(self, payment_id: str, cents: int, key: str) -> str:
        made = await _call(
            self._stripe.v1.refunds.create_async(
                {"payment_intent": payment_id, "amount": cents}, {"idempotency_key": key}
            )
        )
        return str(made.id)

    async def refund_view(self, refund_id: str) -> RefundView:
        found = await _call(self._stripe.v1.refunds.retrieve_async(refund_id))
        payment = id_of(found.payment_intent)
        metadata: Mapping[str, str] = {}
        if payment is not None:
            intent = await _call(self._stripe.v1.payment_intents.retrieve_async(payment))
            metadata = plain(intent.metadata)
        return RefundView(str(found.id), int(found.amount), found.status == "succeeded", payment, metadata)


async def _call(request: Awaitable[T]) -> T:
    """Returns the response. Raises ProviderUnavailable or ProviderRefused for the SDK's errors."""
    with _translated():
        return await request


async def _all_pages(request: Awaitable[Any]) -> list[Any]:
    """Returns all items of a list, page by page."""
    with _translated():
        return [one async for one in (await request).auto_paging_iter()]


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (stripe.APIConnectionError, stripe.APIError) as error:
        raise ProviderUnavailable(_message(error)) from error
    except (stripe.RateLimitError, stripe.AuthenticationError, stripe.PermissionError) as error:
        # A wrong key is the operator's to correct, so the request itself is not at fault.
        raise ProviderUnavailable(_message(error), maybe_done=False) from error
    except stripe.StripeError as error:
        if error.http_status == 409:  # another request with the same idempotency key is in progress
            raise ProviderUnavailable(_message(error)) from error
        raise ProviderRefused(_message(error), error.code) from error


def _message(error: stripe.StripeError) -> str:
    # The SDK's message for a lost connection fills a screen.
    return " ".join((error.user_message or str(error)).split())[:300]


def _subscription(found: Any, customer_id: str) -> SubscriptionView:
    price = found["items"].data[0].price
    return SubscriptionView(str(found.id), customer_id, str(found.status), str(price.id))
