"""Gathers the plan pages: the list, one plan, a draft of a change, and a change of a tenant's plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from admin.operator.plans import form_values
from admin.operator.plans.fields import GROUPS, Field
from admin.operator.plans.form_values import Difference
from billing.previews.service import Preview, PricePreviews
from billing.pricing import PriceService, PriceVersion
from telemetry.tasks import gather_all
from tenants.limits.kinds import Metric
from tenants.models import Tenant
from tenants.plans import PlanService, revision
from tenants.service import TenantService
from tenants.views import PlanView


@dataclass(frozen=True)
class PlanRow:
    """Of the list."""

    plan: PlanView
    tenants: int
    classes: str
    """Those that may be asked for, with what they pay."""


@dataclass(frozen=True)
class Fact:
    """A value of a plan, in words."""

    label: str
    value: str


@dataclass(frozen=True)
class PlanPage:
    """Of one plan."""

    plan: PlanView
    tenants: int
    groups: list[tuple[str, str, list[Fact]]]
    """Title, from when on changes count, values."""


@dataclass(frozen=True)
class PlanDraft:
    """A change that is looked at, and not made yet."""

    plan: PlanView
    tenants: int
    differences: list[Difference]
    seen: str
    """The plan's revision that they are of."""


@dataclass(frozen=True)
class Move:
    """Another plan for a tenant, looked at."""

    tenant: Tenant
    before: PlanView
    after: PlanView
    differences: list[Difference]


class PlanPages:
    """Gathers the pages."""

    def __init__(
        self, plans: PlanService, tenants: TenantService, prices: PriceService, previews: PricePreviews
    ) -> None:
        self._plans = plans
        self._tenants = tenants
        self._prices = prices
        self._previews = previews

    async def list(self) -> list[PlanRow]:
        """Raises DatabaseUnavailable."""
        plans, counts = await gather_all(self._plans.list(), self._plans.num_tenants())
        return [PlanRow(plan, counts.get(plan.id, 0), _classes(plan)) for plan in plans]

    async def one(self, plan_id: str) -> PlanPage:
        """Raises PlanNotFound, DatabaseUnavailable."""
        plan, counts = await gather_all(self._plans.find_by_id(plan_id), self._plans.num_tenants())
        groups = [
            (group.title, group.note, [_fact(plan, field) for field in group.fields if _says(plan, field)])
            for group in GROUPS
        ]
        return PlanPage(plan, counts.get(plan.id, 0), groups)

    async def draft(self, plan_id: str, values: Mapping[str, Any] | None) -> PlanDraft:
        """`values`: by the names of fields; None while they cannot be read. Raises PlanNotFound,
        DatabaseUnavailable.
        """
        plan, counts = await gather_all(self._plans.find_by_id(plan_id), self._plans.num_tenants())
        differences = [] if values is None else form_values.differences(plan, values)
        return PlanDraft(plan, counts.get(plan.id, 0), differences, revision(plan))

    async def effect(self, draft: PlanDraft, values: Mapping[str, Any], now: datetime) -> Preview | None:
        """What the change would have made of the last month's bills; None where it changes none. Raises
        DatabaseUnavailable.
        """
        if not (draft.tenants and form_values.costs_otherwise(draft.plan, values)):
            return None
        in_effect = [one for one in await self._prices.list() if one.effective_from <= now]
        version = in_effect[-1] if in_effect else PriceVersion("", now, 0, 0, 0)
        before, after = form_values.costs(draft.plan), form_values.costs(draft.plan, values)
        return await self._previews.preview_plan(version, draft.plan.id, before, after, now)

    async def move(self, tenant_id: str, plan: str) -> Move:
        """Raises TenantNotFound, PlanNotFound, DatabaseUnavailable."""
        tenant = await self._tenants.find_tenant(tenant_id)
        before, after = await gather_all(self._plans.of_tenant(tenant.id), self._plans.find(plan))
        return Move(tenant, before, after, form_values.between(before, after))


def _classes(plan: PlanView) -> str:
    return ", ".join(
        f"{tier.value} at {terms.price_percent} %" for tier, terms in plan.terms.items() if terms.allowed
    )


def _fact(plan: PlanView, field: Field) -> Fact:
    return Fact(field.label, field.told(field.of(plan)))


def _says(plan: PlanView, field: Field) -> bool:
    """A limit that there is not is not listed."""
    return field.part != "limits" or field.of(plan) is not None or field.key == Metric.SPEND_PER_MONTH
