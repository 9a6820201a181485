"""`/v1/organization`: what the account is, and what its plan allows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_PROJECTS
from api.openapi import ERROR_RESPONSES
from api.organization.requests import asking
from tenants.views import PlanView

router = APIRouter(prefix="/v1/organization", responses=ERROR_RESPONSES, tags=["Organization"])


@router.get("", operation_id="retrieveOrganization")
async def retrieve_organization(request: Request) -> dict[str, Any]:
    """Whose key this is, and on which plan they are."""
    who = await asking(request, READ_PROJECTS)
    return {
        "id": who.tenant_id,
        "object": "organization",
        "name": who.caller.tenant_name,
        "plan": plan_object(who.caller.plan),
    }


def plan_object(plan: PlanView) -> dict[str, Any]:
    return {
        "id": plan.id,
        "object": "organization.plan",
        "name": plan.name,
        "max_adapters": plan.max_adapters,
        "max_file_bytes": plan.max_file_bytes,
        "pinned_adapters": plan.pinned_adapters,
        "service_tiers": {
            tier.name.lower(): {
                "allowed": terms.allowed,
                "price_percent": terms.price_percent,
                "contracted_tokens_per_minute": terms.contracted_tokens_per_minute,
            }
            for tier, terms in plan.terms.items()
        },
    }
