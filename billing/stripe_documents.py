"""Creates and reads our invoices and credit notes at Stripe.

Metadata at Stripe holds our ids, and idempotency keys are derived from them, so repeating a request creates
nothing twice. Requests go through functions of `billing.stripe_gateway`, which translates the SDK's errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from billing.payments.gateway import InvoiceView

Call = Callable[[Awaitable[Any]], Awaitable[Any]]
OURS = "invoice_id"
NOTE = "credit_note_id"
_PAGE = 100


class StripeDocuments:
    """The documents of one account at Stripe."""

    def __init__(
        self, v1: Any, call: Call, all_pages: Callable[[Awaitable[Any]], Awaitable[list[Any]]]
    ) -> None:
        self._v1 = v1
        self._call = call
        self._all_pages = all_pages

    async def find_invoice(self, customer_id: str, invoice_id: str) -> InvoiceView | None:
        # Stripe's search lags by a minute, so the list is read instead.
        found = await self._all_pages(self._v1.invoices.list_async({"customer": customer_id, "limit": _PAGE}))
        return next((one for one in map(invoice_view, found) if one.invoice_id == invoice_id), None)

    async def metered_invoices(self, customer_id: str, start: datetime, end: datetime) -> list[InvoiceView]:
        found = await self._all_pages(self._v1.invoices.list_async({"customer": customer_id, "limit": _PAGE}))
        return [
            one
            for one in map(invoice_view, found)
            if one.invoice_id is None and one.total > 0 and start <= one.period_start < one.period_end <= end
        ]

    async def create_invoice(
        self, customer_id: str, tenant_id: str, invoice_id: str, name: str
    ) -> InvoiceView:
        params = {
            "customer": customer_id,
            "currency": "usd",
            "collection_method": "charge_automatically",
            "auto_advance": False,
            "pending_invoice_items_behavior": "exclude",
            "description": name,
            "metadata": {"tenant_id": tenant_id, OURS: invoice_id},
        }
        options = {"idempotency_key": f"invoice:{invoice_id}"}
        return invoice_view(await self._call(self._v1.invoices.create_async(params, options)))

    async def add_lines(
        self, provider_id: str, lines: Sequence[tuple[str, int]], invoice_id: str
    ) -> InvoiceView:
        params = {"lines": [{"description": what[:500], "amount": cents} for what, cents in lines]}
        options = {"idempotency_key": f"invoice-lines:{invoice_id}"}
        return invoice_view(await self._call(self._v1.invoices.add_lines_async(provider_id, params, options)))

    async def finalize(self, provider_id: str, invoice_id: str) -> InvoiceView:
        options = {"idempotency_key": f"invoice-final:{invoice_id}"}
        request = self._v1.invoices.finalize_invoice_async(provider_id, {"auto_advance": True}, options)
        return invoice_view(await self._call(request))

    async def find_credit_note(self, provider_id: str, note_id: str) -> str | None:
        request = self._v1.credit_notes.list_async({"invoice": provider_id, "limit": _PAGE})
        for one in await self._all_pages(request):
            if plain(one.metadata).get(NOTE) == note_id:
                return str(one.id)
        return None

    async def create_credit_note(
        self, provider_id: str, note_id: str, memo: str, cents: int, refunded: int
    ) -> str:
        params: dict[str, Any] = {
            "invoice": provider_id,
            "amount": cents,
            "memo": memo,
            "metadata": {NOTE: note_id},
        }
        if refunded:
            params["refund_amount"] = refunded
        # If the invoice was paid in between, the same note needs a refund: another request to Stripe.
        options = {"idempotency_key": f"credit-note:{note_id}:{refunded}"}
        return str((await self._call(self._v1.credit_notes.create_async(params, options))).id)


def invoice_view(found: Any) -> InvoiceView:
    return InvoiceView(
        str(found.id),
        id_of(found.customer) or "",
        found.status or "draft",
        int(found.attempt_count),
        int(found.amount_due),
        int(found.amount_paid),
        int(found.amount_remaining),
        datetime.fromtimestamp(found.period_start, UTC),
        datetime.fromtimestamp(found.period_end, UTC),
        found.hosted_invoice_url,
        int(found.total),
        int(found.pre_payment_credit_notes_amount) + int(found.post_payment_credit_notes_amount),
        plain(found.metadata).get(OURS),
    )


def id_of(reference: Any) -> str | None:
    """Returns the id of an object, or of a reference to it."""
    return None if reference is None else str(getattr(reference, "id", reference))


def plain(metadata: Any) -> dict[str, str]:
    return {} if metadata is None else dict(metadata.to_dict())
