"""`/v1/organization/billing`: manages a tenant's payment mode, billing details, top-ups and portal sessions.

Needs an admin key, which keeps working while the account is suspended, so that it can be paid.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict

import msgspec
from fastapi import Request

from api.authentication import READ_BILLING, WRITE_BILLING, actor_of, authenticate
from api.json_bodies import decode, read_json, unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import naming_fields
from api.services import served, services_of
from billing.invoices.errors import BalanceEmpty, ModeNotAllowed
from billing.payments.errors import PaymentsNotConfigured, ProviderRefused, ProviderUnavailable
from billing.payments.service import AccountView, PaymentService
from tenants.validation import PRINTABLE, PRINTABLE_LINES

router = Router(prefix="/v1/organization/billing", tags=["Billing"])


def _printable(length: int, description: str | None = None) -> msgspec.Meta:
    return msgspec.Meta(
        max_length=length, description=description, extra_json_schema={"pattern": f"^{PRINTABLE}$"}
    )


class TopUpRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Money for the balance."""

    amount: Annotated[int, msgspec.Meta(ge=500, le=1_000_000, description="Cents.")]


class UpdateBillingRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to billing; fields that are left out keep their values."""

    name: Annotated[str, _printable(200, "As invoices have it.")] | None = None
    email: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=254,
                description="Where invoices are sent; empty for nowhere.",
                extra_json_schema={"pattern": r"^([!-?A-~]+@[!-?A-~]+\.[!-?A-~]+)?$"},
            ),
        ]
        | None
    ) = None
    address: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=600,
                description="Lines of text.",
                extra_json_schema={"pattern": f"^{PRINTABLE_LINES}$"},
            ),
        ]
        | None
    ) = None
    country: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=2,
                description="Two letters, ISO 3166.",
                extra_json_schema={"pattern": "^([A-Z]{2})?$"},
            ),
        ]
        | None
    ) = None
    tax_id: Annotated[str, _printable(40)] | None = None
    mode: Literal["prepaid", "postpaid"] | None = None
    """`prepaid`: usage draws from the balance from now on. `postpaid` undoes it, unless the operator did."""
    confirm: bool | None = None
    """Allows `prepaid` with an empty balance, although all requests are then refused until a top-up."""


class SubscriptionObject(TypedDict):
    """The subscription at the payment provider."""

    id: str
    status: str


class OpenInvoiceObject(TypedDict):
    """An invoice at the payment provider that is not paid."""

    id: str
    status: str
    amount_due_cents: int
    amount_remaining_cents: int
    period_start: int | None
    """Unix seconds."""
    period_end: int | None
    failed_at: int | None
    """Unix seconds of the first payment that failed."""


class BillingObject(TypedDict):
    """How the organization pays, and what it owes."""

    object: Literal["organization.billing"]
    mode: str
    """`prepaid`: usage draws from the balance. `postpaid`: usage is invoiced."""
    name: str
    """The name on invoices."""
    email: str
    """Where invoices are sent."""
    address: str
    country: str
    """Two letters, ISO 3166; empty when it is not known."""
    tax_id: str
    state: str
    """`active`, `grace` while a failed payment can still be settled, or `suspended`."""
    grace_until: int | None
    """Unix seconds when the organization is suspended unless it pays."""
    provider: Literal["stripe"] | None
    livemode: bool
    """Whether payments are real."""
    subscription: SubscriptionObject | None
    open_invoices: list[OpenInvoiceObject]


class PortalSessionObject(TypedDict):
    """A page of the payment provider where cards are kept and invoices paid."""

    object: Literal["organization.billing.portal_session"]
    url: str
    """The page, which expires after some minutes."""


class CheckoutSessionObject(TypedDict):
    """A page of the payment provider where a top-up is paid."""

    object: Literal["organization.billing.checkout_session"]
    id: str
    url: str
    amount_cents: int


BODIES = (TopUpRequest, UpdateBillingRequest)
_top_up, _update = msgspec.json.Decoder(TopUpRequest), msgspec.json.Decoder(UpdateBillingRequest)


def _payments(request: Request) -> PaymentService:
    return served(services_of(request).payments, "Payments")


@router.get("", operation_id="retrieveBilling")
async def retrieve(request: Request) -> BillingObject:
    """Retrieves how the organization pays, and what it owes."""
    caller = await authenticate(request, READ_BILLING)
    return _shown(await _payments(request).view(caller.tenant_id))


@router.post("", operation_id="updateBilling", openapi_extra=json_body("UpdateBillingRequest"))
@fails_with(
    BalanceEmpty(0),
    ModeNotAllowed("The operator has set the mode; ask them to change it."),
)
async def update(request: Request) -> BillingObject:
    """Changes the name and address on invoices, or how usage is paid. Fields that are left out stay as they
    are.
    """
    caller = await authenticate(request, WRITE_BILLING)
    body = msgspec.structs.asdict(decode(_update, await read_json(request)))
    mode, confirmed = body.pop("mode"), bool(body.pop("confirm"))
    details = {name: value for name, value in body.items() if value is not None}
    payments = _payments(request)
    with naming_fields():
        await payments.change(
            caller.tenant_id,
            actor_of(request, caller),
            details,
            mode,
            now=datetime.now(UTC),
            confirmed=confirmed,
        )
    return _shown(await payments.view(caller.tenant_id))


def _shown(found: AccountView) -> BillingObject:
    subscription = found.subscription
    return {
        "object": "organization.billing",
        "mode": found.account.mode,
        "name": found.account.name,
        "email": found.account.email,
        "address": found.account.address,
        "country": found.account.country,
        "tax_id": found.account.tax_id,
        "state": found.account.state,
        "grace_until": unix(found.grace_until),
        "provider": None if found.live is None else "stripe",
        "livemode": bool(found.live),
        "subscription": (
            None if subscription is None else {"id": subscription.id, "status": subscription.status}
        ),
        "open_invoices": [
            {
                "id": invoice.id,
                "status": invoice.status,
                "amount_due_cents": invoice.amount_due,
                "amount_remaining_cents": invoice.amount_remaining,
                "period_start": unix(invoice.period_start),
                "period_end": unix(invoice.period_end),
                "failed_at": unix(invoice.failing_since),
            }
            for invoice in found.owed
        ],
    }


@router.post("/portal", operation_id="createBillingPortalSession")
@fails_with(
    PaymentsNotConfigured(),
    ProviderUnavailable("no answer"),
    ProviderRefused("no such customer"),
)
async def portal(request: Request) -> PortalSessionObject:
    """Creates a page at the payment provider where cards are kept and open invoices are paid."""
    caller = await authenticate(request, WRITE_BILLING)
    url = await _payments(request).portal(caller.tenant_id, actor_of(request, caller))
    return {"object": "organization.billing.portal_session", "url": url}


@router.post("/top_ups", operation_id="createTopUp", openapi_extra=json_body("TopUpRequest"))
@fails_with(
    PaymentsNotConfigured(),
    ProviderUnavailable("no answer"),
    ProviderRefused("no such customer"),
)
async def top_up(request: Request) -> CheckoutSessionObject:
    """Creates a page at the payment provider where a top-up is paid. The amount is in the balance seconds
    after its payment.
    """
    caller = await authenticate(request, WRITE_BILLING)
    body = decode(_top_up, await read_json(request))
    with naming_fields():
        made = await _payments(request).top_up(caller.tenant_id, body.amount, actor_of(request, caller))
    return {
        "object": "organization.billing.checkout_session",
        "id": made.id,
        "url": made.url,
        "amount_cents": made.cents,
    }
