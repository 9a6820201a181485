"""Searches tenants for operators, and collects a tenant's details. Usage and debts are in
`billing.customers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit
from tenants.limits.repository import LimitRepository
from tenants.members.repository import MemberRepository
from tenants.models import Tenant, User
from tenants.operators.repository import CrossTenantQueries, KeyCount, TenantFilter, TenantStatus
from tenants.repository import TenantDirectory
from tenants.views import PlanView, plan_view

__all__ = ["KeyCount", "TenantDetails", "TenantFilter", "TenantRow", "TenantSearch", "TenantStatus"]


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant in a list."""

    id: str
    name: str
    plan: str
    """The plan's name."""
    billing_state: str
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class TenantDetails:
    """Details of a tenant: members, keys, plan and limits."""

    plan: PlanView
    plans: list[str]
    """Names of all plans."""
    members: list[User]
    keys: list[KeyCount]
    limits: tuple[Limit, ...]
    """All limits in force."""


class TenantSearch:
    """Searches all tenants. Every method is one transaction and raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, wanted: TenantFilter, *, after: str | None = None, limit: int = 50
    ) -> tuple[list[TenantRow], int]:
        """Returns tenants ordered by name, after the name `after`, and the number of all that match."""
        async with self._database.read(EVERY_TENANT) as session:
            directory = CrossTenantQueries(session)
            rows = await directory.page(wanted, after=after, limit=limit)
            return [TenantRow(*row) for row in rows], await directory.count(wanted)

    async def names(self, tenant_ids: Sequence[str]) -> dict[str, str]:
        """Returns tenants' names by id."""
        async with self._database.read(EVERY_TENANT) as session:
            return await CrossTenantQueries(session).names(tenant_ids)

    async def organisation(self, tenant: Tenant, *, num_members: int) -> TenantDetails:
        """Returns the tenant's details, with its `num_members` oldest members at most."""
        async with self._database.read(EVERY_TENANT) as session:
            plans = await TenantDirectory(session).plans()
            members = await MemberRepository(session, tenant.id).page(
                emails=(), after=None, limit=num_members, newest_first=False
            )
            keys = await CrossTenantQueries(session).keys(tenant.id)
            limits = await LimitRepository(session, tenant.id).effective()
        (plan,) = (plan for plan in plans if plan.id == tenant.plan_id)
        return TenantDetails(plan_view(plan), [one.name for one in plans], [*members], keys, limits or ())
