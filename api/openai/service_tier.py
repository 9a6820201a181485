"""Chooses the service tier of a request from its `service_tier`, the tenant's plan and the project."""

from __future__ import annotations

from api.errors import InvalidValue
from engine.protocol import PriorityClass
from tenants.context import TenantContext


def requested_tier(service_tier: str | None, caller: TenantContext) -> PriorityClass:
    """Returns the service tier that a request asks for.

    `auto`, or none, means priority where the plan offers it, otherwise default; default where the project
    says so; never flex. Raises InvalidValue when the plan does not offer the tier, or not to the project.
    """
    terms = caller.plan.terms
    if service_tier is None or service_tier == "auto":
        best = PriorityClass.PRIORITY if terms[PriorityClass.PRIORITY].allowed else PriorityClass.DEFAULT
        return PriorityClass.DEFAULT if caller.auto_tier == PriorityClass.DEFAULT else best
    tier = PriorityClass(service_tier)
    if not terms[tier].allowed:
        raise InvalidValue(
            f"The service tier '{tier}' is not offered by your plan, or not to this project.", "service_tier"
        )
    return tier
