"""`/v1/organization/billing`: how a tenant pays and stands, what invoices name, top-ups, and the provider's
portal.

Admin keys alone, which go on working while the account is suspended: this is where it is paid.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request

from api.deps import READ_BILLING, WRITE_BILLING, actor_of, authenticate, read_json, served, services_of
from api.json_bodies import decode, unix
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.requests import naming_fields
from billing.invoices.accounts import DETAILS
from billing.payments.service import AccountView, PaymentService

router = APIRouter(prefix="/v1/organization/billing", responses=ERROR_RESPONSES, tags=["Billing"])


def _printable(length: int, description: str | None = None, format: str = "printable") -> msgspec.Meta:
    return msgspec.Meta(max_length=length, description=description, extra_json_schema={"format": format})


class TopUpRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Money for the balance."""

    amount: Annotated[int, msgspec.Meta(ge=500, le=1_000_000, description="Cents.")]


class UpdateBillingRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is left out stays as it is."""

    name: Annotated[str, _printable(200, "As invoices have it.")] | None = None
    email: Annotated[str, _printable(254, "Where bills go.", "email")] | None = None
    address: Annotated[str, msgspec.Meta(max_length=600, description="Lines of text.")] | None = None
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
    """`mode` may be `prepaid` though the balance is empty, and every request is refused until it is not."""


BODIES = (TopUpRequest, UpdateBillingRequest)
_top_up, _update = msgspec.json.Decoder(TopUpRequest), msgspec.json.Decoder(UpdateBillingRequest)


def _payments(request: Request) -> PaymentService:
    return served(services_of(request).payments, "Payments")


@router.get("", operation_id="retrieveBilling")
async def retrieve(request: Request) -> dict[str, Any]:
    """How the organization pays, and whether it has."""
    caller = await authenticate(request, READ_BILLING)
    return _shown(await _payments(request).view(caller.tenant_id))


@router.post("", operation_id="updateBilling", openapi_extra=json_body("UpdateBillingRequest"))
async def update(request: Request) -> dict[str, Any]:
    """Change what invoices name from now on, or have usage paid in advance."""
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


def _shown(found: AccountView) -> dict[str, Any]:
    subscription = found.subscription
    return {
        "object": "organization.billing",
        "mode": found.account.mode,
        **{name: getattr(found.account, name) for name in DETAILS},
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
async def portal(request: Request) -> dict[str, Any]:
    """A page of the payment provider's on which cards are kept and open invoices paid."""
    caller = await authenticate(request, WRITE_BILLING)
    url = await _payments(request).portal(caller.tenant_id, actor_of(request, caller))
    return {"object": "organization.billing.portal_session", "url": url}


@router.post("/top_ups", operation_id="createTopUp", openapi_extra=json_body("TopUpRequest"))
async def top_up(request: Request) -> dict[str, Any]:
    """A page to pay on. The amount is in the balance within seconds of its payment."""
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
