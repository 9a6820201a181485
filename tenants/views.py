"""Defines the immutable view of a plan that a caller's context carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.protocol import PriorityClass
from tenants.models import STANDARD_PLAN, Plan
from tenants.tier_terms import DEFAULTS, Terms, read


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan's limits and terms. See `tenants.models.Plan` for each field."""

    id: str = STANDARD_PLAN
    name: str = "standard"
    max_adapters: int = 100
    max_file_bytes: int = 2 << 30
    pinned_adapters: int = 0
    gate: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Calibration thresholds that differ from the defaults."""
    terms: Mapping[PriorityClass, Terms] = field(default_factory=lambda: DEFAULTS, hash=False)
    """Terms of every service tier."""
    limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Limits of the tenant as a whole: amounts by metric."""
    monthly_fee: int = 0
    included_usage: int = 0
    batch_price_percent: int = 50
    response_days: int = 30


STANDARD = PlanView()
"""The standard plan as a migration creates it."""


def plan_view(plan: Plan) -> PlanView:
    return PlanView(
        plan.id,
        plan.name,
        plan.max_adapters,
        plan.max_file_bytes,
        plan.pinned_adapters,
        MappingProxyType(dict(plan.gate)),
        read(plan.terms),
        MappingProxyType(dict(plan.limits)),
        plan.monthly_fee,
        plan.included_usage,
        plan.batch_price_percent,
        plan.response_days,
    )
