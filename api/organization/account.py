"""`/v1/organization`: what the account is, and what its plan allows."""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_PROJECTS
from api.openapi.routing import Router
from api.organization.admin_requests import authenticated_admin
from tenants.views import PlanView


class TierTerms(TypedDict):
    """What the plan says of a service tier."""

    allowed: bool
    """Whether requests can ask for the tier."""
    price_percent: int
    """The price in this tier, in percent of the list price."""
    contracted_tokens_per_minute: int | None
    """Tokens per minute that the plan guarantees in this tier; null for none."""


class PlanObject(TypedDict):
    """What the organization's plan allows."""

    id: str
    object: Literal["organization.plan"]
    name: str
    max_adapters: int
    max_file_bytes: int
    pinned_adapters: int
    """How many adapters are always kept in memory."""
    batch_price_percent: int
    """The price of a batch's lines, in percent of the list price."""
    response_days: int
    """Days for which stored responses and conversations are kept."""
    service_tiers: dict[str, TierTerms]
    """By service tier: `priority`, `default`, `flex`."""


class OrganizationObject(TypedDict):
    """Your organization."""

    id: str
    object: Literal["organization"]
    name: str
    plan: PlanObject


router = Router(prefix="/v1/organization", tags=["Organization"])


@router.get("", operation_id="retrieveOrganization")
async def retrieve_organization(request: Request) -> OrganizationObject:
    """Retrieves the organization that the key belongs to, and its plan."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return {
        "id": who.tenant_id,
        "object": "organization",
        "name": who.caller.tenant_name,
        "plan": plan_object(who.caller.plan),
    }


def plan_object(plan: PlanView) -> PlanObject:
    return {
        "id": plan.id,
        "object": "organization.plan",
        "name": plan.name,
        "max_adapters": plan.max_adapters,
        "max_file_bytes": plan.max_file_bytes,
        "pinned_adapters": plan.pinned_adapters,
        "batch_price_percent": plan.batch_price_percent,
        "response_days": plan.response_days,
        "service_tiers": {
            tier.name.lower(): {
                "allowed": terms.allowed,
                "price_percent": terms.price_percent,
                "contracted_tokens_per_minute": terms.contracted_tokens_per_minute,
            }
            for tier, terms in plan.terms.items()
        },
    }
